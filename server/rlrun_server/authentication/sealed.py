"""Encrypts and authenticates texts so that every replica of rlrun-server can decrypt them, without stored state."""

import base64
import secrets
import zlib
from collections.abc import Callable, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

INFO = b"rlrun-server sealed texts 1"
KEY_BYTES = 32
NONCE_BYTES = 12
"""Size of the random nonce in each text. After 2^32 texts with one key, a nonce has repeated with a probability of
2^-33 (NIST SP 800-38D).
"""
MAX_TEXT = 64 * 1024
"""Number of bytes to which a decrypted text is cut. `seal` does not check the size."""


class Sealer:
    """AES-256-GCM encryption with keys derived from those that sign grants, which all replicas have."""

    def __init__(self, keys: Callable[[], Sequence[bytes]]) -> None:
        """`keys` returns at least one key. The first key encrypts. All keys decrypt, which allows rotation."""
        self._keys = keys
        self._derived: dict[bytes, AESGCM] = {}

    def seal(self, text: bytes, purpose: str) -> str:
        """Encrypt the text for a purpose, as base64url. Only `open` with the same purpose can decrypt it."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._ciphers()[0].encrypt(nonce, zlib.compress(text, 9), purpose.encode())
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def open(self, sealed: str, purpose: str) -> bytes | None:
        """Decrypt a sealed text. Returns None unless the text was sealed for this purpose with one of the keys."""
        try:
            data = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return None
        nonce, rest = data[:NONCE_BYTES], data[NONCE_BYTES:]
        if len(nonce) < NONCE_BYTES:
            return None
        for cipher in self._ciphers():
            try:
                return zlib.decompressobj().decompress(cipher.decrypt(nonce, rest, purpose.encode()), MAX_TEXT)
            except InvalidTag:
                continue
        return None

    def _ciphers(self) -> list[AESGCM]:
        keys = self._keys()
        self._derived = {key: self._derived.get(key) or AESGCM(_derive(key)) for key in keys}
        return list(self._derived.values())


def _derive(key: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=INFO).derive(key)
