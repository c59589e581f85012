"""Secrets that users name, as a reconcile has read them. Their values are not kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL
from rlrun.kube.objects import Obj, label


@dataclass(frozen=True)
class ObservedSecret:
    """Facts of a Secret that exists."""

    keys: frozenset[str]
    empty_keys: frozenset[str]
    """Those without a value."""
    operator_owned: bool
    """True if the operator has made it."""
    type: str
    labels: Mapping[str, str]

    @classmethod
    def by_name(cls, secrets: Iterable[Obj | None]) -> "dict[str, ObservedSecret]":
        """Return the facts of Secrets by name. None stands for one that does not exist."""
        return {secret["metadata"]["name"]: cls._of(secret) for secret in secrets if secret is not None}

    @classmethod
    def _of(cls, secret: Obj) -> "ObservedSecret":
        data = secret.get("data") or {}
        return cls(
            keys=frozenset(data),
            empty_keys=frozenset(key for key, value in data.items() if not value),
            operator_owned=label(secret, MANAGED_BY_LABEL) == FIELD_MANAGER,
            type=secret.get("type") or "Opaque",
            labels=secret["metadata"].get("labels") or {},
        )
