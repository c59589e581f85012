"""Facts about Secrets that users refer to. The values in the Secrets are not kept."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL
from rlrun.kube.objects import Obj, label


@dataclass(frozen=True)
class ObservedSecret:
    """Facts about an existing Secret."""

    keys: frozenset[str]
    empty_keys: frozenset[str]
    """Keys whose value is empty or not text."""
    operator_owned: bool
    """True if the operator created the Secret."""
    type: str
    labels: Mapping[str, str]

    @classmethod
    def by_name(cls, secrets: Iterable[Obj | None]) -> "dict[str, ObservedSecret]":
        """Return the facts about the Secrets, by name. An entry that is None (the Secret does not exist) is skipped."""
        return {secret["metadata"]["name"]: cls._of(secret) for secret in secrets if secret is not None}

    @classmethod
    def _of(cls, secret: Obj) -> "ObservedSecret":
        keys = frozenset(secret.get("data") or {})
        return cls(
            keys=keys,
            empty_keys=keys - {key for key, value in decode_secret(secret).items() if value},
            operator_owned=label(secret, MANAGED_BY_LABEL) == FIELD_MANAGER,
            type=secret.get("type") or "Opaque",
            labels=secret["metadata"].get("labels") or {},
        )


def decode_secret(secret: Obj) -> dict[str, str]:
    """Decode a Secret's data. Whitespace around values is removed, and values that are not text are omitted."""
    decoded = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            decoded[key] = base64.b64decode(value).decode().strip()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return decoded
