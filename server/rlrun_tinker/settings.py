"""Settings of rlrun-tinker, read from `RLRUN_TINKER_*`."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from rlrun.api.base.schema import Schema
from rlrun.constants import SERVER_METRICS_PORT, SERVER_PORT, SERVER_TLS_PORT
from rlrun.service.settings import read_settings

PREFIX = "RLRUN_TINKER_"


class TinkerSettings(Schema):
    """Ports, files and limits. The environment variable of each field is `RLRUN_TINKER_<FIELD>`."""

    server: str
    """URL of rlrun-server."""
    server_authority: Path | None = None
    """PEM file with the CA certificates to trust for rlrun-server. If None, those of the image are trusted."""
    port: int = SERVER_PORT
    """Port without TLS. If there is a certificate, only the pod itself can reach it."""
    tls_port: int = SERVER_TLS_PORT
    tls: Path | None = None
    """Folder with tls.crt and tls.key, which are read again when they change. None disables TLS."""
    metrics_port: int = SERVER_METRICS_PORT
    max_connections: int = Field(default=6000, ge=10, le=100_000)
    """Maximum number of open connections. A client uses one connection for each result that it waits for."""
    max_connections_per_address: int = Field(default=4000, ge=1, le=100_000)
    """Maximum number of open connections from one address, or from one IPv6 /64 network outside the cluster."""

    @field_validator("server")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("must be the URL of rlrun-server, such as https://rlrun-server.rlrun-system.svc:8443")
        return url.rstrip("/")

    def trust(self) -> ssl.SSLContext | None:
        """Return the TLS context for rlrun-server, or None to use the certificates of the image. Raises ValueError."""
        if self.server_authority is None:
            return None
        try:
            return ssl.create_default_context(cafile=self.server_authority)
        except OSError as error:  # ssl.SSLError is a subclass
            message = (
                f"{PREFIX}SERVER_AUTHORITY: {self.server_authority} is not a PEM file with CA certificates ({error})"
            )
            raise ValueError(message) from error


def load_settings(environment: Mapping[str, str] = os.environ) -> TinkerSettings:
    """Read all settings. Raises ValueError that names the invalid variable."""
    settings = read_settings(TinkerSettings, environment, PREFIX)
    settings.trust()
    return settings
