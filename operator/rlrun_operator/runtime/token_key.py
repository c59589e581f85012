"""The platform's key of run tokens: a Secret in the operator's namespace, which the operator makes once."""

import base64
import binascii
import secrets

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import SECRET
from rlrun.kube.objects import Obj

KEY = "key"
KEY_BYTES = 32
MIN_KEY_BYTES = 16
CONFLICT = 409


class TokenKeyInvalid(Exception):
    """The Secret exists and has no usable key. It is not replaced: runs use what it had."""


async def ensure_token_key(cluster: AsyncKubeClient, namespace: str, name: str) -> bytes:
    """Return the key of the Secret, which is created if it does not exist. Raises ApiError, TokenKeyInvalid."""
    found = await cluster.get(SECRET, namespace, name)
    if found is None:
        key = secrets.token_bytes(KEY_BYTES)
        try:
            await cluster.create(_secret(namespace, name, key))
            return key
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            # Another replica of the operator was faster.
            found = await cluster.get(SECRET, namespace, name)
    return _key_in(found or {}, f"{namespace}/{name}")


def _key_in(secret: Obj, where: str) -> bytes:
    try:
        key = base64.b64decode((secret.get("data") or {}).get(KEY, ""), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < MIN_KEY_BYTES:
        raise TokenKeyInvalid(
            f"Secret {where} has no {KEY} of at least {MIN_KEY_BYTES} bytes. Restore it, or delete it: the operator "
            "then makes a new one, and active runs lose the connection between their pods until their next attempt."
        )
    return key


def _secret(namespace: str, name: str, key: bytes) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "Opaque",
        "data": {KEY: base64.b64encode(key).decode()},
    }
