"""Keys of the platform: Secrets in the operator's namespace, which the operator creates once.

They are not part of the chart, because `helm upgrade --force` and GitOps tools that replace objects would empty them.
"""

import base64
import binascii
import secrets
from collections.abc import Mapping

from rlrun.constants import CONFLICT
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import SECRET
from rlrun.kube.objects import Obj
from rlrun.protocol.signed_text import MIN_KEY_BYTES

from rlrun_operator.config.settings import ApiKeySettings

KEY = "key"
KEY_BYTES = 32


class KeyInvalid(Exception):
    """Raised if the Secret exists but has no usable key. The operator does not create a new key, because active runs
    use the old one.
    """


async def ensure_key(cluster: AsyncKubeClient, namespace: str, name: str) -> bytes:
    """Return the key in the Secret. Creates the Secret if it does not exist. Raises ApiError or KeyInvalid."""
    existing = await cluster.get(SECRET, namespace, name)
    if existing is None:
        # Use text without white space, because programs read the Secret from variables or files.
        key = secrets.token_urlsafe(KEY_BYTES).encode()
        try:
            await cluster.create(build_secret(namespace, name, {KEY: key}))
            return key
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            # Another replica of the operator has created the Secret.
            existing = await cluster.get(SECRET, namespace, name)
    return _key_in(existing or {}, f"{namespace}/{name}")


async def ensure_api_keys(cluster: AsyncKubeClient, wanted: ApiKeySettings) -> None:
    """Create the Secret that rlrun-server fills with API keys, or delete it if keys are turned off. Raises ApiError."""
    namespace, name = wanted.secret.namespace, wanted.secret.name
    existing = await cluster.get(SECRET, namespace, name)
    if wanted.enabled and existing is None:
        try:
            await cluster.create(build_secret(namespace, name, {}))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
    elif not wanted.enabled and existing is not None:
        await cluster.delete(SECRET, namespace, name)


def _key_in(secret: Obj, where: str) -> bytes:
    try:
        key = base64.b64decode((secret.get("data") or {}).get(KEY, ""), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < MIN_KEY_BYTES:
        raise KeyInvalid(
            f"Secret {where} has no {KEY} of at least {MIN_KEY_BYTES} bytes. Restore the key, or delete the Secret, so "
            f"that the operator creates a new one. With a new key, active runs lose connections between their pods or "
            f"their access to S3 until their next attempt."
        )
    return key


def build_secret(namespace: str, name: str, data: Mapping[str, bytes], secret_type: str = "Opaque") -> Obj:
    """Return a Secret of the platform."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": secret_type,
        "data": {file: base64.b64encode(content).decode() for file, content in data.items()},
    }
