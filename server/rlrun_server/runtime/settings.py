"""Settings of the server, read from the environment: `RLRUN_SERVER_*` and the AWS_* variables of boto3."""

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
    """Port without TLS. If `tls` is set, it is open on loopback only, where `kubectl port-forward` can reach it."""
    tls_port: int = SERVER_TLS_PORT
    tls: Path | None = None
    """Folder with tls.crt and tls.key, which are reloaded when they change. None disables TLS."""
    metrics_port: int = SERVER_METRICS_PORT
    keys: Path = Path("/etc/rlrun-server/keys")
    """Folder with the keys that sign grants, one file per key. All keys are accepted, so that they can be rotated."""
    credentials: Path = Path("/etc/rlrun-server/s3")
    """Folder with the S3 credentials, one file per AWS_* variable. If the files are missing, boto3 searches for
    credentials.
    """
    kubeconfig: str | None = None
    """Path of a kubeconfig for a server outside the cluster. None selects the pod's ServiceAccount."""
    max_connections: int = Field(default=1000, ge=10, le=100_000)
    """Maximum number of open connections. Each needs about 60 kB of memory with TLS."""
    max_connections_per_address: int = Field(default=250, ge=1, le=100_000)
    """Maximum number of open connections from one address, or from one IPv6 /64 network outside the cluster. At most
    half this number of completions, of all users, are in progress at a time.
    """
    signatures_per_second: float = Field(default=500.0, gt=0)
    """Maximum rate of signatures for one namespace. A burst may be four times as large."""
    reviews_per_second: float = Field(default=20.0, gt=0)
    """Maximum rate of tokens that must be reviewed, per namespace for pods and per address for users. A burst, as when
    many pods start, may be ten times as large.
    """
    user_signatures_per_second: float = Field(default=50.0, gt=0)
    """Maximum rate of signatures for one user. A burst may be four times as large."""
    bucket: str = ""
    """Bucket of the platform. If empty, no request to S3 is signed."""
    prefix: str = ""
    """Prefix of all keys in the bucket."""
    public_endpoint: str = ""
    """URL of the S3 service for users' machines. If empty, the URL for pods is used."""
    environment_owners: dict[str, list[str]] = Field(default_factory=dict)
    """Lists of namespaces by owner of environment packages, as JSON. In a namespace, * matches any characters."""

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
    """Settings for the page's login at an OIDC issuer, as JSON. None disables it."""
    oidc_secret: Path = Path("/etc/rlrun-server/oidc/clientSecret")
    """File with the client secret for the issuer. If it does not exist, the server is a public client."""

    @field_validator("environment_owners", "namespaces", "oidc", mode="before")
    @classmethod
    def _parse_json(cls, value: object) -> object:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError as error:
            raise ValueError(f"must be JSON: {error}") from None


@dataclass(frozen=True)
class ServerConfig:
    """Settings, the connection to S3, and access to the keys and the secret in mounted files."""

    settings: ServerSettings
    connection: S3Connection

    @property
    def location(self) -> StorageLocation:
        """Location of the platform's files in S3, with the endpoint that users can reach."""
        connection = self.connection.at(self.settings.public_endpoint or self.connection.endpoint)
        return StorageLocation(bucket=self.settings.bucket, prefix=self.settings.prefix, **connection.model_dump())

    def keys(self) -> list[bytes]:
        """Read the keys that sign grants. Raises ValueError if there are none, or one is too short."""
        return read_keys(self.settings.keys)

    def oidc_secret(self) -> str:
        """Read the client secret for the OIDC issuer. Returns an empty string if there is none."""
        file = self.settings.oidc_secret
        return file.read_text().strip() if file.is_file() else ""

    def pool_key(self) -> bytes:
        """Read the operator's signing key, from which the keys of serving pools are derived. Raises ValueError."""
        own = self.settings.keys / KEY_FILE
        return own.read_bytes() if own.is_file() else self.keys()[0]


def load_settings(environment: Mapping[str, str] = os.environ) -> ServerConfig:
    """Read all settings, and check the keys and the address of the bucket. Raises ValueError with the cause."""
    settings = read_settings(ServerSettings, environment, PREFIX)
    config = ServerConfig(settings, S3Connection.of_variables(environment))
    config.keys()
    for connection in (config.connection, config.location):
        if problem := connection.problem_of(settings.bucket or "bucket"):
            raise ValueError(problem)
    return config


def read_keys(folder: Path) -> list[bytes]:
    """Return the content of the files in the folder, except empty files and those whose names begin with `..`, which
    Kubernetes creates in a mounted Secret. Raises ValueError if there are no keys, or one is too short.
    """
    files = sorted(file for file in folder.glob("*") if not file.name.startswith("..") and file.is_file())
    keys = [key for key in (file.read_bytes() for file in files) if key]
    if not keys or any(len(key) < MIN_KEY_BYTES for key in keys):
        raise ValueError(
            f"{folder} must contain at least one key, and no key of fewer than {MIN_KEY_BYTES} bytes. Mount the Secret "
            "with which the operator signs grants."
        )
    return keys
