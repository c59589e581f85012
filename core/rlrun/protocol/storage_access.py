"""S3 access for processes of the platform that have no S3 credentials: rlrun-server signs their requests.

A process describes an S3 request to rlrun-server and receives the headers that sign it (AWS Signature Version 4); the
request itself, with its data, goes directly to S3. This is the same technique as remote signing in Apache Iceberg's
REST catalog. The projected ServiceAccount token identifies the pod (its audience names run and role), and the grant,
which the operator has signed, defines what this role of the run may use. The processes of a shared pool work for
several runs: the trainer has one grant per run, the engines have one grant for the policies of all runs, and each of
these grants requires the pool's token.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field, model_validator

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema

SIGN_PATH = "/storage/v1/sign"
"""Path for signing one request. POST SignRequest → SignedHeaders."""
SIGN_BATCH_PATH = "/storage/v1/sign-batch"
"""Path for signing several requests, such as all requests of a small artifact. POST SignBatchRequest → SignedBatch."""
SERVER_VARIABLE = "RLRUN_STORAGE_SERVER"
"""Variable with the URL of rlrun-server. If unset, a process uses its own S3 credentials."""
SERVER_AUTHORITY_VARIABLE = "RLRUN_STORAGE_SERVER_AUTHORITY"
"""Variable with the CA certificates, in PEM, to trust for rlrun-server. Defaults to those that the image trusts."""
TOKEN_FILE_VARIABLE = "RLRUN_STORAGE_TOKEN_FILE"
"""Variable with the path of the token, which the kubelet renews in place."""
GRANT_VARIABLE = "RLRUN_STORAGE_GRANT"
TOKEN_DIR = "/var/run/secrets/rlrun-storage"
"""Prefix of the token's folder in a container."""
TOKEN_FILE = "token"
PAYLOAD_HASH = "x-amz-content-sha256"
"""Header with the SHA-256 of the body in hexadecimal, which the signature covers."""
MAX_HEADERS = 32
MAX_URL = 4096
MAX_GRANT = 65536
MAX_GRANT_LIFETIME = timedelta(hours=2)
"""Maximum time from now until a grant expires. It does not apply to grants that never expire."""
CLOCK_TOLERANCE = timedelta(seconds=60)
"""Tolerated difference between the clocks of operator and rlrun-server when the expiry of a grant is checked."""
MAX_BATCH = 32
"""Maximum number of requests in a batch."""
MAX_FOLDERS = 1024
"""Maximum number of folders in a grant."""
MAX_QUERY = 16_384
MAX_SIGN_BYTES = 256 * 1024
"""Maximum size in bytes of a batch of requests to sign. The longest URLs and the longest grant fit into it."""

Header = Annotated[str, Field(max_length=16_384)]
"""Value of a header. Session tokens of cloud accounts have a few thousand characters."""
_REQUEST = InputLimits(size=MAX_SIGN_BYTES, values=4 * MAX_BATCH * MAX_HEADERS)


class StorageRole(StrEnum):
    """Kind of process that uses S3."""

    trainer = "trainer"
    orchestrator = "orchestrator"
    inference = "inference"
    fetcher = "fetcher"
    """Init container that downloads the base model."""
    serving = "serving"


class StorageGrant(Schema):
    """Folders that one role of a run, a pool or a weights cache may use, as s3:// URIs."""

    wire_limits = InputLimits(size=MAX_GRANT)

    namespace: Text
    owner: Text
    """Uid of the run, or name of the serving pool, shared pool or weights cache."""
    role: StorageRole
    folder: Text = ""
    """Folder of the run. The role determines which parts are accessible. Empty if the owner is not a run."""
    readable: list[Text] = Field(default_factory=list, max_length=MAX_FOLDERS)
    """Other folders that may be read: a base model, the checkpoint of a warm start, environment packages, or the
    policies and adapters that a pool serves.
    """
    listable: list[Text] = Field(default_factory=list, max_length=MAX_FOLDERS)
    """Other folders that may be listed, but not read: those of the owners of environment packages."""
    # Grants without these fields have the same bytes as before the fields existed, so servers of both versions accept
    # such grants. An older server refuses a grant with one of the fields, because it does not know the field.
    holder: Text = Field(default="", exclude_if=lambda value: not value)
    """Name of the pool in the same namespace whose process uses the grant. If empty, the owner's process uses it."""
    ends: AwareDatetime | None = Field(default=None, exclude_if=lambda value: value is None)
    """Time at which the grant expires, in UTC and whole seconds. Required if `holder` is set. None means never."""

    @model_validator(mode="after")
    def _held_grant_ends(self) -> "StorageGrant":
        if self.holder and self.ends is None:
            raise ValueError("a grant that sets `holder` must also set `ends`")
        return self

    @property
    def audience(self) -> str:
        """Audience of the token that must accompany the grant."""
        return f"rlrun/{self.holder or self.owner}/{self.role}"


class RequestToSign(Schema):
    """S3 request to be signed, without its body."""

    method: str = Field(max_length=8)
    url: str = Field(max_length=MAX_URL)
    headers: dict[Text, Header] = Field(default_factory=dict, max_length=MAX_HEADERS)
    """Headers that S3 interprets, including PAYLOAD_HASH."""


class SignRequest(RequestToSign):
    """One S3 request, with the grant that allows it."""

    wire_limits = _REQUEST

    grant: str = Field(max_length=MAX_GRANT)


class SignBatchRequest(Schema):
    """Several S3 requests, with the grant that allows them."""

    wire_limits = _REQUEST

    requests: list[RequestToSign] = Field(min_length=1, max_length=MAX_BATCH)
    grant: str = Field(max_length=MAX_GRANT)


class SignedHeaders(Schema):
    """Signature of a request: headers to add, or query parameters. It is valid for a few minutes, and only for the
    method, URL and headers of that request.
    """

    headers: dict[Text, Header] = Field(max_length=2 * MAX_HEADERS)
    query: str = Field(default="", max_length=MAX_QUERY)
    """Parameters to append to the URL, for S3 servers that verify them more strictly than headers. The request is then
    sent without PAYLOAD_HASH. Empty if the signature is in the headers.
    """

    def signed_url(self, url: str) -> str:
        """Return the URL of the request, including the signature if it is in the URL."""
        return f"{url}{'&' if '?' in url else '?'}{self.query}" if self.query else url


class SignedBatch(Schema):
    """Signatures of the requests of a batch, in order."""

    signed: list[SignedHeaders] = Field(max_length=MAX_BATCH)
