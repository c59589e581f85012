"""Digest of an object as the operator builds it, to compare it with one that the API server has completed."""

import hashlib
import json
from typing import Any


def digest_of(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of the value's JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
