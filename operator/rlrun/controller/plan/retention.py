"""Which artifacts have had their time."""

from collections.abc import Collection


def expired_steps(ready: Collection[int], keep: int, protected: Collection[int] = ()) -> list[int]:
    """Steps to delete, oldest first: all but the newest `keep`; -1 keeps all.

    Protected steps (deployed adapters) are never deleted and do not take the place of others. The newest step stays
    whatever `keep` says: a run that restarts continues from it.
    """
    if keep < 0:
        return []
    counted = sorted(set(ready) - set(protected))
    return counted[: -max(keep, 1)]
