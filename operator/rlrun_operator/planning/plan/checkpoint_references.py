"""Which checkpoints other runs need: retention may not take them away.

A run needs the checkpoint that it starts from until it has one of its own: a trainer that dies before that begins
again at the same place. A claim counts where it could be granted: in the same namespace, or where the checkpoint is
shared with the run's; nobody else can keep files alive.
"""

from collections.abc import Iterable, Mapping

from rlrun.api.run_status import RLRunStatus
from rlrun.kube.objects import Obj
from rlrun.kube.references import split_checkpoint_id


def referenced_steps(
    namespace: str, names: Mapping[int, str], objects: Mapping[int, Obj], runs: Iterable[Obj]
) -> set[int]:
    """Steps of the checkpoints that unfinished `runs` start from; `names` has those of all checkpoints by step."""
    steps = {name: step for step, name in names.items()}
    found = set()
    for run in runs:
        checkpoint_id = str((run.get("spec") or {}).get("checkpointId") or "")
        if not checkpoint_id or not needs_its_start(run):
            continue
        home = str(run["metadata"].get("namespace") or "")
        place, name = split_checkpoint_id(checkpoint_id, home)
        step = steps.get(name) if place == namespace else None
        if step is None:
            continue
        shared = (objects.get(step, {}).get("spec") or {}).get("sharedWith") or []
        if home == namespace or home in shared:
            found.add(step)
    return found


def needs_its_start(run: Obj) -> bool:
    """Whether the run would begin at its checkpointId if all its processes died now."""
    if run["metadata"].get("deletionTimestamp"):
        return False
    status = RLRunStatus.parse(run.get("status"))
    return not (status.phase is not None and status.phase.finished) and status.last_checkpoint is None
