"""API keys: credentials for programs without a Kubernetes login, such as a CI job that pushes environment packages.

A key acts as the ServiceAccount ACCOUNT of one namespace, so users who may create tokens for this account may create
keys. rlrun-server shows a key once and stores only its digest.
"""

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.schema import Schema

KEYS_PATH = "/rlrun/v1/namespaces/{namespace}/keys"
"""Path of a namespace's keys. POST NewApiKey → CreatedApiKey; GET → ApiKeyList."""
KEY_PATH = f"{KEYS_PATH}/{{id}}"
"""Path of one key. DELETE → ApiKeyInfo, used by version 0.1.0 of the command line."""
KEY_DELETION_PATH = f"{KEY_PATH}/delete"
"""Path for deleting a key. POST → ApiKeyInfo. Users can send only GET and POST through the API server's proxy, not
DELETE.
"""
ACCOUNT = "rlrun-user"
"""Name of the ServiceAccount, in each namespace, that gives the namespace's API keys their permissions."""
KEYS_AUDIENCE = "rlrun/keys"
"""Audience of an ACCOUNT token for managing API keys. A user who has a client certificate but no token sends such a
token to prove that they may create tokens for ACCOUNT.
"""
KEY_PREFIX = "rlk_"
"""Prefix of every key. Secret scanners recognize leaked keys by this prefix."""
ID_PATTERN = r"[a-z2-7]{12}"
KEY_PATTERN = rf"{KEY_PREFIX}({ID_PATTERN})_([A-Za-z0-9_-]{{43}})"
"""Pattern of a key: its id and its secret."""
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
DEFAULT_DAYS = 90
MAX_DAYS = 366
MAX_DESCRIPTION = 200
MAX_LISTED_KEYS = 2000


class NewApiKey(Schema):
    """Request to create an API key."""

    description: str = Field(default="", max_length=MAX_DESCRIPTION, pattern=PRINTABLE)
    """Purpose of the key, for people."""
    days: int = Field(default=DEFAULT_DAYS, ge=1, le=MAX_DAYS)
    """Days until the key expires."""


class ApiKeyInfo(Schema):
    """Description of a key, without the key itself."""

    id: Text
    namespace: Text
    description: str = Field(default="", max_length=MAX_DESCRIPTION)
    owner: Text
    """User who created the key."""
    created: Text
    """Creation time in UTC, as in `2026-01-31T12:00:00Z`."""
    expires: Text


class CreatedApiKey(ApiKeyInfo):
    """New key, which is shown only once."""

    key: Text


class ApiKeyList(Schema):
    """Keys of a namespace, oldest first."""

    keys: list[ApiKeyInfo] = Field(max_length=MAX_LISTED_KEYS)
