"""Which artifacts have had their time."""

from collections.abc import Collection


def expired_steps(
    ready: Collection[int], keep: int, deployed: Collection[int] = (), claimed: Collection[int] = ()
) -> list[int]:
    """Steps to delete, oldest first: all but the newest `keep`; -1 keeps all.

    Deployed steps are never deleted and do not take the place of others; claimed ones, which another run starts from,
    stay as well. The newest step stays whatever `keep` says: a run that restarts continues from it.
    """
    if keep < 0:
        return []
    counted = sorted(set(ready) - set(deployed))
    return [step for step in counted[: -max(keep, 1)] if step not in set(claimed)]
