"""API keys: creating and parsing them, and their entries in the Secret that stores them.

The text is `rlk_{id}_{secret}`. The secret has 256 random bits and cannot be guessed, so a plain SHA-256 is
sufficient as the stored digest.
"""

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rlrun.kube.objects import Obj
from rlrun.protocol.api_keys import KEY_PATTERN, KEY_PREFIX, ApiKeyInfo

TEXT = re.compile(KEY_PATTERN)
ID_BYTES = 7
SECRET_BYTES = 32
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class ApiKey:
    """API key without its secret."""

    id: str
    namespace: str
    account_uid: str
    """UID of the ServiceAccount. A recreated ServiceAccount has a different UID, which makes the key invalid."""
    digest: str
    """SHA-256 of the secret, in hexadecimal."""
    owner: str
    description: str
    created: datetime
    """UTC, with whole seconds."""
    expires: datetime

    def opens_with(self, secret: str, now: datetime) -> bool:
        """Return whether `secret` is the secret of this key and the key has not expired."""
        return (
            hmac.compare_digest(digest_of(secret).encode(), self.digest.encode(errors="replace")) and now < self.expires
        )

    @property
    def info(self) -> ApiKeyInfo:
        """Description of the key for users."""
        return ApiKeyInfo(
            id=self.id,
            namespace=self.namespace,
            description=self.description,
            owner=self.owner,
            created=self.created.strftime(TIME_FORMAT),
            expires=self.expires.strftime(TIME_FORMAT),
        )


def is_api_key(token: str) -> bool:
    """Return whether the token has the prefix of API keys."""
    return token.startswith(KEY_PREFIX)


def parse(text: str) -> tuple[str, str] | None:
    """Parse a key into its id and its secret. Returns None if the text is not a key."""
    match = TEXT.fullmatch(text)
    return (match[1], match[2]) if match else None


def mint(
    namespace: str, account_uid: str, owner: str, description: str, lifetime: timedelta, now: datetime
) -> tuple[ApiKey, str]:
    """Create a key. Returns the key without its secret, and the full text for the user."""
    key_id = base64.b32encode(secrets.token_bytes(ID_BYTES)).decode().lower().rstrip("=")
    secret = secrets.token_urlsafe(SECRET_BYTES)
    created = now.replace(microsecond=0)
    key = ApiKey(key_id, namespace, account_uid, digest_of(secret), owner, description, created, created + lifetime)
    return key, f"{KEY_PREFIX}{key_id}_{secret}"


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret in hexadecimal, as it is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def to_entries(keys: Mapping[str, ApiKey]) -> dict[str, str]:
    """Return the `data` of the Secret that stores the keys: one entry per key, by key id."""
    return {key_id: base64.b64encode(_to_json(key)).decode() for key_id, key in sorted(keys.items())}


def size_of(keys: Mapping[str, ApiKey]) -> int:
    """Return the total size of the entries from `to_entries` in bytes, as the API server counts it."""
    return sum(len(_to_json(key)) for key in keys.values())


def read_entries(secret: Obj) -> dict[str, ApiKey]:
    """Return the keys in the Secret by id. Invalid entries are ignored."""
    entries = {key_id: _from_json(key_id, text) for key_id, text in (secret.get("data") or {}).items()}
    return {key_id: key for key_id, key in entries.items() if key is not None}


def _to_json(key: ApiKey) -> bytes:
    fields = {
        "namespace": key.namespace,
        "accountUid": key.account_uid,
        "digest": key.digest,
        "owner": key.owner,
        "description": key.description,
        "created": key.created.strftime(TIME_FORMAT),
        "expires": key.expires.strftime(TIME_FORMAT),
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def _from_json(key_id: str, text: str) -> ApiKey | None:
    try:
        fields = json.loads(base64.b64decode(text, validate=True))
        namespace, uid, digest, owner, description = (
            str(fields[name]) for name in ("namespace", "accountUid", "digest", "owner", "description")
        )
        created, expires = _time(fields["created"]), _time(fields["expires"])
    except (KeyError, TypeError, ValueError):
        return None
    return ApiKey(key_id, namespace, uid, digest, owner, description, created, expires)


def _time(text: str) -> datetime:
    return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC)
