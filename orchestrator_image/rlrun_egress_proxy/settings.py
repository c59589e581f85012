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
    """Ports, limits and deadlines (seconds). Each has a variable `RLRUN_EGRESS_<FIELD>`."""

    port: int = EGRESS_PORT
    metrics_port: int = EGRESS_METRICS_PORT
    keys: Path = Path("/etc/rlrun-egress")
    """Folder with the signing keys, a file each. All of them are accepted, so a key can be replaced by the next one."""
    private_addresses: str = ""
    """Hosts, addresses and networks that are not on the internet and may be reached nevertheless, with commas."""
    metrics_with_tenants: bool = False
    """Names of namespaces in `/metrics`, which every pod that reaches its port may read."""
    tunnels_per_run: int = Field(default=64, ge=1)
    connections: int = Field(default=512, ge=2)
    """Connections at a time, each with up to 300 KiB of buffers. One namespace has at most half of them as tunnels."""
    head_deadline: float = Field(default=10.0, gt=0)
    """Time for the request, and for the first TLS message."""
    connect_deadline: float = Field(default=10.0, gt=0)
    idle_deadline: float = Field(default=300.0, gt=0)
    """Time without a byte in either direction."""


@dataclass(frozen=True)
class EgressConfig:
    """Everything that the process reads at its start."""

    settings: EgressProxySettings
    rules: AddressRules
    proxies: ProxyRules = NO_PROXIES
    """Proxy of the platform before hosts outside of the cluster, from HTTPS_PROXY and NO_PROXY."""

    def keys(self) -> list[bytes]:
        """Return the signing keys as they are now. Raises ValueError if there is none."""
        return read_keys(self.settings.keys)


def load_settings(environment: Mapping[str, str] = os.environ) -> EgressConfig:
    """Read all settings. Raises ValueError that names the variable that does not fit."""
    settings = read_settings(EgressProxySettings, environment, PREFIX)
    try:
        rules = AddressRules.parse(filter(None, map(str.strip, settings.private_addresses.split(","))))
    except ValueError as error:
        raise ValueError(f"{PREFIX}PRIVATE_ADDRESSES: {error}") from error
    config = EgressConfig(settings, rules, ProxyRules.of_environment(environment))
    config.keys()
    return config


def read_keys(folder: Path) -> list[bytes]:
    """Return the keys in the folder, without the links that Kubernetes makes beside them. Raises ValueError."""
    files = sorted(file for file in folder.glob("*") if not file.name.startswith("..") and file.is_file())
    keys = [key for key in (file.read_bytes().strip() for file in files) if key]
    if not keys or any(len(key) < MIN_KEY_BYTES for key in keys):
        raise ValueError(
            f"{folder} needs at least one file with a signing key of {MIN_KEY_BYTES} bytes or more. Mount the Secret "
            "that the operator signs with."
        )
    return keys
