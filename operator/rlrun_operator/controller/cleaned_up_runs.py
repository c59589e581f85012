"""Detection of finished runs whose cleanup is complete, according to the watches of their objects.

Cleanup first deletes the pods' controllers and the Secret with the tokens, then, when no pod can run, the objects that
only pods need. So a reconcile that found no pod and no Secret came before the last of the latter were deleted. The
ended Job of the orchestrator and its pod are kept for their log, which was copied when the run ended.
"""

from datetime import datetime

from rlrun.kube.kinds import JOB, POD
from rlrun.kube.objects import Obj

from rlrun_operator.cache.child_kinds import PODS_AND_CHILDREN
from rlrun_operator.cache.run_index import RunIndex
from rlrun_operator.planning.policies.ending.resync_schedule import long_ago

KEPT = (JOB, POD)
"""Kinds of which a run that is cleaned up keeps those of its orchestrator."""
DELETED = tuple(kind for kind in PODS_AND_CHILDREN if kind not in KEPT)
"""Kinds of which it has none."""


def is_cleaned_up(index: RunIndex, run: Obj, now: datetime) -> bool:
    """Return whether the run ended long ago, and has no objects but those that are kept.

    A run that ended lately is not: an operator that was killed while it created the run's objects may have left a
    Secret alone, which no watch shows. Nor is one that has a place in the queue: other runs get it when it is given
    back.
    """
    metadata = run["metadata"]
    if long_ago(run, now) is None or run["status"].get("queue"):
        return False
    name, uid = (metadata["namespace"], metadata["name"]), metadata["uid"]
    return all(index.has_none(kind, name) for kind in DELETED) and all(index.has_only(kind, name, uid) for kind in KEPT)
