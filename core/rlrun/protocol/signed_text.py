"""Signed text: decisions of the operator that pods carry and cannot change.

The text consists of a payload and its HMAC-SHA256 (RFC 2104), both in base64url without padding (RFC 4648, section 5)
and joined by a dot. Verification needs only the key.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import TypeVar

from rlrun.api.base.received import parse
from rlrun.api.base.schema import Schema

MIN_KEY_BYTES = 16

M = TypeVar("M", bound=Schema)


def sign(content: Schema, key: bytes) -> str:
    """Return the content as signed text."""
    payload = _encode(content.model_dump_json(by_alias=True).encode())
    return f"{payload}.{_encode(_signature(payload, key))}"


def verify(text: str, keys: Sequence[bytes], model: type[M]) -> M | None:
    """Verify a signed text. Returns the content, or None if the text is not signed with one of the keys, or the content
    does not match `model`.
    """
    payload, _, signature = text.partition(".")
    try:
        given = _decode(signature)
        matches = [hmac.compare_digest(given, _signature(payload, key)) for key in keys]
        return parse(model, _decode(payload)) if any(matches) else None
    except ValueError:
        return None


def _signature(payload: str, key: bytes) -> bytes:
    return hmac.digest(key, payload.encode(), hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
