"""Settings of the server, read from `RLRUN_SERVER_*`, and the AWS_* variables of boto3."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, field_validator
from rlrun.api.base.s3_connection import S3Connection
from rlrun.api.base.schema import Schema
from rlrun.constants import SERVER_METRICS_PORT, SERVER_PORT, SERVER_TLS_PORT
from rlrun.protocol.signed_text import MIN_KEY_BYTES
from rlrun.protocol.user_storage import StorageLocation
from rlrun.service.settings import read_settings

from rlrun_server.runtime.oidc_settings import OidcSettings

PREFIX = "RLRUN_SERVER_"
KEY_FILE = "key"
"""Name of the file in `keys` that contains the operator's key."""


class ServerSettings(Schema):
    """Ports, files and limits. The environment variable of each field is `RLRUN_SERVER_<FIELD>`."""

    port: int = SERVER_PORT
    """Port without TLS. If there is a certificate, only the pod itself can reach it, as `kubectl port-forward` does."""
    tls_port: int = SERVER_TLS_PORT
    tls: Path | None = None
    """Folder with tls.crt and tls.key, which may change. None disables TLS."""
    metrics_port: int = SERVER_METRICS_PORT
    keys: Path = Path("/etc/rlrun-server/keys")
    """Folder with the keys that sign grants, one file per key. All keys are accepted, so that they can be rotated."""
    credentials: Path = Path("/etc/rlrun-server/s3")
    """Folder with the S3 credentials, one file per AWS_* variable. If unset, boto3 searches for credentials."""
    kubeconfig: str | None = None
    """Path of a kubeconfig for a server outside the cluster. None selects the pod's ServiceAccount."""
    max_connections: int = Field(default=1000, ge=10, le=100_000)
    """Maximum number of open connections. Each needs about 60 kB of memory with TLS."""
    max_connections_per_address: int = Field(default=250, ge=1, le=100_000)
    """Maximum number of open connections from one address, or from one IPv6 /64 network outside the cluster. Half of
    them may be requests to engines.
    """
    signatures_per_second: float = Field(default=500.0, gt=0)
    """Maximum rate of signatures for one namespace. A burst may be four times as large."""
    reviews_per_second: float = Field(default=20.0, gt=0)
    """Maximum rate of new tokens of one namespace, or from one address of users. A burst, as when many pods start, may
    be ten times as large.
    """
    user_signatures_per_second: float = Field(default=50.0, gt=0)
    """Maximum rate of signatures for one user. A burst may be four times as large."""
    bucket: str = ""
    """Bucket of the platform. If empty, users are not served."""
    prefix: str = ""
    """Path in the bucket for all objects."""
    public_endpoint: str = ""
    """URL of the S3 service for users' machines. If empty, the URL for pods is used."""
    environment_owners: dict[str, list[str]] = Field(default_factory=dict)
    """Namespaces of owners of environment packages, as JSON; * stands for any characters."""

    namespaces: list[str] = Field(default_factory=list)
    """Namespaces whose objects are served, as JSON. An empty list selects all."""

    api_key_secret: str = Field(default="", pattern=r"^([^/]+/[^/]+)?$")
    """Namespace and name of the Secret that stores API keys, separated by a slash. If empty, there are no API keys."""
    api_keys_may_write: bool = False
    """Allow callers with an API key to make changes and to use Events, Secrets and logs of pods, with tokens of the
    key's account.
    """

    metrics_with_tenants: bool = False
    """Include names of namespaces and adapters in `/metrics`, which every pod that reaches the port can read."""

    page: bool = True
    """Serve the web page and its logins."""
    oidc: OidcSettings | None = None
    """Login of the page at an OIDC issuer, as JSON. None disables it."""
    oidc_secret: Path = Path("/etc/rlrun-server/oidc/clientSecret")
    """File with the client secret of the issuer. If unset, the client is a public client."""

    @field_validator("environment_owners", "namespaces", "oidc", mode="before")
    @classmethod
    def _parse_json(cls, value: object) -> object:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError as error:
            raise ValueError(f"must be JSON: {error}") from None


@dataclass(frozen=True)
class ServerConfig:
    """Settings, and the content of the files that the process reads when it starts."""

    settings: ServerSettings
    connection: S3Connection

    @property
    def location(self) -> StorageLocation:
        """Location of the platform's files in S3, with the endpoint that users can reach."""
        connection = self.connection.at(self.settings.public_endpoint or self.connection.endpoint)
        return StorageLocation(bucket=self.settings.bucket, prefix=self.settings.prefix, **connection.model_dump())

    def keys(self) -> list[bytes]:
        """Return the current keys. Raises ValueError if there are none."""
        return read_keys(self.settings.keys)

    def oidc_secret(self) -> str:
        """Return the current client secret of the OIDC issuer, or an empty value if there is none."""
        file = self.settings.oidc_secret
        return file.read_text().strip() if file.is_file() else ""

    def pool_key(self) -> bytes:
        """Return the key from which the keys of serving pools are derived, which is the operator's signing key."""
        own = self.settings.keys / KEY_FILE
        return own.read_bytes() if own.is_file() else self.keys()[0]


def load_settings(environment: Mapping[str, str] = os.environ) -> ServerConfig:
    """Read all settings. Raises ValueError that names the invalid variable."""
    settings = read_settings(ServerSettings, environment, PREFIX)
    config = ServerConfig(settings, S3Connection.of_variables(environment))
    config.keys()
    for connection in (config.connection, config.location):
        if problem := connection.problem_of(settings.bucket or "bucket"):
            raise ValueError(problem)
    return config


def read_keys(folder: Path) -> list[bytes]:
    """Return the keys in the folder, without the symbolic links that Kubernetes creates there. Raises ValueError."""
    files = sorted(file for file in folder.glob("*") if not file.name.startswith("..") and file.is_file())
    keys = [key for key in (file.read_bytes() for file in files) if key]
    if not keys or any(len(key) < MIN_KEY_BYTES for key in keys):
        raise ValueError(
            f"{folder} needs at least one file with a key of {MIN_KEY_BYTES} bytes or more. Mount the Secret with "
            "which the operator signs grants."
        )
    return keys
