"""API keys: credentials for programs without a Kubernetes login, such as a CI job that pushes environment packages.

A key acts as the ServiceAccount ACCOUNT of one namespace, so that who may create a token of that account may create a
key. rlrun-server shows a key once and stores its digest only.
"""

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.schema import Schema

KEYS_PATH = "/rlrun/v1/namespaces/{namespace}/keys"
"""POST NewApiKey → CreatedApiKey; GET → ApiKeyList."""
KEY_PATH = f"{KEYS_PATH}/{{id}}"
"""DELETE → ApiKeyInfo. Commands of 0.1.0 send it."""
KEY_DELETION_PATH = f"{KEY_PATH}/delete"
"""POST → ApiKeyInfo: through the API server's proxy users send GET and POST only."""
ACCOUNT = "rlrun-user"
"""ServiceAccount whose rights the keys of its namespace have."""
KEYS_AUDIENCE = "rlrun/keys"
"""Audience of a token of ACCOUNT that proves the right to create its tokens, for users without a token of their own."""
KEY_PREFIX = "rlk_"
"""Start of every key, by which scanners of secrets find one that leaked."""
ID_PATTERN = r"[a-z2-7]{12}"
KEY_PATTERN = rf"{KEY_PREFIX}({ID_PATTERN})_([A-Za-z0-9_-]{{43}})"
"""Text of a key: its id, and its secret."""
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
DEFAULT_DAYS = 90
MAX_DAYS = 366
MAX_DESCRIPTION = 200
MAX_LISTED_KEYS = 2000


class NewApiKey(Schema):
    """Request for a key."""

    description: str = Field(default="", max_length=MAX_DESCRIPTION, pattern=PRINTABLE)
    """Purpose of the key, for people."""
    days: int = Field(default=DEFAULT_DAYS, ge=1, le=MAX_DAYS)
    """Days until the key ends."""


class ApiKeyInfo(Schema):
    """Description of a key, without the key itself."""

    id: Text
    namespace: Text
    description: str = Field(default="", max_length=MAX_DESCRIPTION)
    owner: Text
    """User who created it."""
    created: Text
    """Time in UTC, as in `2026-01-31T12:00:00Z`."""
    expires: Text


class CreatedApiKey(ApiKeyInfo):
    """A new key. It is not shown again."""

    key: Text


class ApiKeyList(Schema):
    """Keys of a namespace, oldest first."""

    keys: list[ApiKeyInfo] = Field(max_length=MAX_LISTED_KEYS)
