"""Settings of the egress proxy, read from `RLRUN_EGRESS_*`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field
from rlrun.api.base.address_rules import AddressRules
from rlrun.api.base.proxy_rules import NO_PROXIES, ProxyRules
from rlrun.api.base.schema import Schema
from rlrun.constants import EGRESS_METRICS_PORT, EGRESS_PORT
from rlrun.protocol.signed_text import MIN_KEY_BYTES
from rlrun.service.settings import read_settings

PREFIX = "RLRUN_EGRESS_"


class EgressProxySettings(Schema):
    """Ports, limits and deadlines (seconds). Each has an environment variable `RLRUN_EGRESS_<FIELD>`."""

    port: int = EGRESS_PORT
    metrics_port: int = EGRESS_METRICS_PORT
    keys: Path = Path("/etc/rlrun-egress")
    """Folder with one file per signing key. All keys are accepted, so that keys can be rotated."""
    private_addresses: str = ""
    """Comma-separated hosts, addresses and networks that are allowed although they are not on the internet."""
    metrics_with_tenants: bool = False
    """Include namespace names in `/metrics`, which every pod that reaches the port can read."""
    tunnels_per_run: int = Field(default=64, ge=1)
    connections: int = Field(default=512, ge=2)
    """Maximum number of connections, each with up to 300 KiB of buffers. A namespace may use half for tunnels."""
    head_deadline: float = Field(default=10.0, gt=0)
    """Time to receive the request, and then the first TLS message."""
    connect_deadline: float = Field(default=10.0, gt=0)
    idle_deadline: float = Field(default=300.0, gt=0)
    """Time without a byte in either direction after which a tunnel is closed."""


@dataclass(frozen=True)
class EgressConfig:
    """All settings that the process reads when it starts."""

    settings: EgressProxySettings
    rules: AddressRules
    proxies: ProxyRules = NO_PROXIES
    """Platform proxy for hosts outside of the cluster, from HTTPS_PROXY and NO_PROXY."""

    def keys(self) -> list[bytes]:
        """Read the current signing keys. Raises ValueError if there is none, or one is too short."""
        return read_keys(self.settings.keys)


def load_settings(environment: Mapping[str, str] = os.environ) -> EgressConfig:
    """Read all settings. Raises ValueError that names the invalid variable."""
    settings = read_settings(EgressProxySettings, environment, PREFIX)
    try:
        rules = AddressRules.parse(filter(None, map(str.strip, settings.private_addresses.split(","))))
    except ValueError as error:
        raise ValueError(f"{PREFIX}PRIVATE_ADDRESSES: {error}") from error
    config = EgressConfig(settings, rules, ProxyRules.of_environment(environment))
    config.keys()
    return config


def read_keys(folder: Path) -> list[bytes]:
    """Return the keys in the folder. The folders and links that Kubernetes creates there (`..*`) and empty files are
    skipped. Raises ValueError if no key remains, or one is shorter than MIN_KEY_BYTES.
    """
    files = sorted(file for file in folder.glob("*") if not file.name.startswith("..") and file.is_file())
    keys = [key for key in (file.read_bytes().strip() for file in files) if key]
    if not keys or any(len(key) < MIN_KEY_BYTES for key in keys):
        raise ValueError(
            f"{folder} must contain at least one signing key, and each key must have at least {MIN_KEY_BYTES} bytes. "
            "Mount the Secret with the operator's signing key."
        )
    return keys
