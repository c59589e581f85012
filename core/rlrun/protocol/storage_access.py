"""Access of the platform's processes to S3 without its credentials: rlrun-server signs their requests.

A process sends what it is about to ask S3 for, and gets the headers that make it valid (AWS Signature Version 4); the
request itself, with its data, goes to S3 directly. This is the remote signing of Apache Iceberg's REST catalog. Two
things decide: the projected ServiceAccount token says which pod asks (its audience names run and role), and the grant,
which the operator has signed, says what that role of that run may use.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema

SIGN_PATH = "/storage/v1/sign"
"""POST SignRequest → SignedHeaders."""
SIGN_BATCH_PATH = "/storage/v1/sign-batch"
"""POST SignBatchRequest → SignedBatch: all requests of a small artifact at once."""
SERVER_VARIABLE = "RLRUN_STORAGE_SERVER"
"""URL of rlrun-server. Without it a process uses S3 credentials of its own."""
SERVER_AUTHORITY_VARIABLE = "RLRUN_STORAGE_SERVER_AUTHORITY"
"""Certificates in PEM from which that of rlrun-server must descend. Without it those that the image trusts."""
TOKEN_FILE_VARIABLE = "RLRUN_STORAGE_TOKEN_FILE"
"""Path of the token, which the kubelet renews in place."""
GRANT_VARIABLE = "RLRUN_STORAGE_GRANT"
TOKEN_DIR = "/var/run/secrets/rlrun-storage"
"""Folder of the token in a container."""
TOKEN_FILE = "token"
PAYLOAD_HASH = "x-amz-content-sha256"
"""Header with the SHA-256 of the body in hexadecimal, which the signature covers."""
MAX_HEADERS = 32
MAX_URL = 4096
MAX_GRANT = 65536
MAX_BATCH = 32
"""Requests in one batch."""
MAX_FOLDERS = 1024
"""Folders that a grant names."""
MAX_QUERY = 16_384
MAX_SIGN_BYTES = 256 * 1024
"""Size of a batch with the longest URLs, and of the longest grant."""

Header = Annotated[str, Field(max_length=16_384)]
"""Value of a header. Session tokens of cloud accounts have some thousand characters."""
_REQUEST = InputLimits(size=MAX_SIGN_BYTES, values=4 * MAX_BATCH * MAX_HEADERS)


class StorageRole(StrEnum):
    """Kind of process that uses S3."""

    trainer = "trainer"
    orchestrator = "orchestrator"
    inference = "inference"
    fetcher = "fetcher"
    """Init container that gets the base model."""
    serving = "serving"


class StorageGrant(Schema):
    """Folders that one role of a run, or of a serving pool, may use, as s3:// URIs."""

    wire_limits = InputLimits(size=MAX_GRANT)

    namespace: Text
    owner: Text
    """Uid of the run, or name of the serving pool."""
    role: StorageRole
    folder: Text = ""
    """Folder of the run. The role decides about its parts. Empty for a serving pool."""
    readable: list[Text] = Field(default_factory=list, max_length=MAX_FOLDERS)
    """Folders of others that may be read: a base model, the checkpoint of a warm start, environment packages."""
    listable: list[Text] = Field(default_factory=list, max_length=MAX_FOLDERS)
    """Folders of others whose entries may be listed, but not read: those of the owners of environment packages."""

    @property
    def audience(self) -> str:
        """Audience of the token that goes with the grant."""
        return f"rlrun/{self.owner}/{self.role}"


class RequestToSign(Schema):
    """A request to S3 that is about to be sent, without its body."""

    method: str = Field(max_length=8)
    url: str = Field(max_length=MAX_URL)
    headers: dict[Text, Header] = Field(default_factory=dict, max_length=MAX_HEADERS)
    """Headers that S3 interprets, PAYLOAD_HASH among them."""


class SignRequest(RequestToSign):
    """One request to S3, and what allows it."""

    wire_limits = _REQUEST

    grant: str = Field(max_length=MAX_GRANT)


class SignBatchRequest(Schema):
    """Several requests to S3, and what allows them."""

    wire_limits = _REQUEST

    requests: list[RequestToSign] = Field(min_length=1, max_length=MAX_BATCH)
    grant: str = Field(max_length=MAX_GRANT)


class SignedHeaders(Schema):
    """Headers to add to the request, or parameters of its URL. They are valid for this method, URL and headers, and for
    a few minutes only.
    """

    headers: dict[Text, Header] = Field(max_length=2 * MAX_HEADERS)
    query: str = Field(default="", max_length=MAX_QUERY)
    """Parameters to append to the URL, for S3 servers that check them better than headers. The request is then sent
    without PAYLOAD_HASH. Empty: the headers are the signature."""

    def signed_url(self, url: str) -> str:
        """Return the URL of the request with its signature, if the URL has it."""
        return f"{url}{'&' if '?' in url else '?'}{self.query}" if self.query else url


class SignedBatch(Schema):
    """Headers of each request of a batch, in its order."""

    signed: list[SignedHeaders] = Field(max_length=MAX_BATCH)
