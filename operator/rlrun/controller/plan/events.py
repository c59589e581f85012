"""What is worth an Event: transitions, never states."""

from rlrun.kube.conditions import find_condition
from rlrun.kube.events import EventRecord as Note
from rlrun.schema.run_status import Phase, RLRunStatus

WATCHED = ("Validated", "TrainerReady", "InferenceReady", "EnvironmentsReady", "OrchestratorReady")
QUIET_REASONS = frozenset({"Starting", "RunFinished", "Suspended", "Restarting", "NotStarted"})


def transitions(old: RLRunStatus, new: RLRunStatus) -> tuple[Note, ...]:
    """The Events between two statuses of the same run."""
    notes = []
    if new.phase is not None and new.phase is not old.phase:
        notes.append(_phase_note(new.phase, new))
    for kind in WATCHED:
        before, after = find_condition(old, kind), find_condition(new, kind)
        if after is None or after.status.value == "True" or after.reason in QUIET_REASONS:
            continue
        if (before is None or before.reason != after.reason) and new.phase is not Phase.failed:
            notes.append(Note(after.reason, after.message, warning=True))
    if new.attempt > old.attempt:
        notes.append(Note("AttemptStarted", f"Attempt {new.attempt} continues from the newest checkpoint."))
    known = {c.step for c in old.checkpoints}
    notes += [
        Note("CheckpointReady", f"Checkpoint {c.name} of step {c.step} is ready.")
        for c in reversed(new.checkpoints)
        if c.step not in known
    ]
    return tuple(notes)


def _phase_note(phase: Phase, status: RLRunStatus) -> Note:
    if phase is Phase.failed:
        return Note(status.reason or "Failed", f"The run failed: {status.message or 'no reason known'}", warning=True)
    return Note(phase.value, status.message or f"The run is {phase.value}.")
