"""What earlier processes of a run left, and which part of it fits where the trainer is now.

The trainer's step is the run's step (docs/design/005), so a state counts for the draw of examples only if it is of
that very step:

    the newest state in S3        the orchestrator was replaced, the trainer lived (or saved what it had when it ended)
    that, one batch further       the same in mid-step: the trainer has made the step and nobody heard of it
    the one in the checkpoint     the trainer was replaced, or both were
    the one kept beside it        the same, where the trainer saved the checkpoint by itself when it was told to end

Which batch a step was made of is what the trainer says: a state lists every batch that was sent for its step, by this
process or one before it. Counters are another matter: they tell what the run has done in all, lost steps included, and
go on from the newest.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.schema.wire import SessionState

from rlrun_orchestrator.batch import SentBatch
from rlrun_orchestrator.board import RunProgress
from rlrun_orchestrator.deal import Deal

log = logging.getLogger(__name__)

VERSION = 3
ODD = (KeyError, TypeError, ValueError, AttributeError)
"""What a state of another shape raises."""

State = Mapping[str, Any]


def state_of(
    run_uid: str, step: int, progress: RunProgress, deal: Deal, sent: Sequence[SentBatch] = ()
) -> dict[str, Any]:
    """What is kept in S3 after each step and in checkpoints, as JSON types; `sent`: all batches sent for this step."""
    return {
        "version": VERSION,
        "run": run_uid,
        "step": step,
        "reward": progress.newest_reward,
        "board": progress.to_state(),
        "deal": deal.state(),
        "sent": [batch.to_json() for batch in sent],
    }


@dataclass(frozen=True)
class Unheard:
    """A step that the trainer made and whose result nobody has heard. What is not known is None."""

    batch: SentBatch | None


@dataclass(frozen=True)
class Continued:
    """Where a new process goes on."""

    unheard: Unheard | None = None
    """The step that led to the trainer's, if it has no line of metrics yet."""
    sent: list[SentBatch] = field(default_factory=list)
    """Batches of earlier processes of which the trainer may be making its next step now."""


def own(run_uid: str, state: SessionState) -> State | None:
    """What this very run put into the checkpoint that the trainer resumed from, if it did."""
    checkpointed = state.orchestrator_state
    return checkpointed if checkpointed and checkpointed.get("run") == run_uid else None


def newest(run_uid: str, saved: State | None, state: SessionState) -> State | None:
    """The state that knows most of what the run has done: the one in S3, but for one in the checkpoint that is of a
    later step because S3 did not get the other in time.
    """
    checkpointed = own(run_uid, state)
    if saved is None or checkpointed is None:
        return saved or checkpointed
    return checkpointed if _step(checkpointed) > _step(saved) else saved


def restore(
    run_uid: str, saved: State | None, kept: State | None, state: SessionState, progress: RunProgress, deal: Deal
) -> Continued:
    """Continues counters and draw in a new process. `saved`: the newest state in S3; `kept`: the one kept there for
    the trainer's step.
    """
    found = newest(run_uid, saved, state)
    continued = Continued()
    try:
        if found:
            progress.restore(found["board"])
        if saved is not None and found is saved:
            continued = _continued(saved, state)
    except ODD as error:
        log.warning("the saved state is of another shape and is not used: %s: %s", type(error).__name__, error)
        saved = None
    batch = continued.unheard.batch if continued.unheard is not None else None
    if saved is not None and (_step(saved) == state.step or batch is not None):
        if _restored(deal, saved, batch.ordinals if batch is not None else ()):
            return continued
        saved = None
    if not rewind(run_uid, state, kept, deal):
        _nearest(run_uid, saved, state, deal)
    return continued


def rewind(run_uid: str, state: SessionState, kept: State | None, deal: Deal) -> bool:
    """Deals from the trainer's step on as after that step the first time. False, and nothing done, when no state of
    that step is known.

    At step 0 that is where the run began, or, when it started from another run's checkpoint, in the middle of that
    run's draw (`Deal.begin_with`): its next examples are the ones that the other run was about to train on.
    """
    for known in (own(run_uid, state), kept):
        if known is not None and _step(known) == state.step and _restored(deal, known):
            return True
    if state.step > 0:
        return False
    checkpointed = state.orchestrator_state
    if checkpointed and checkpointed.get("run") != run_uid:
        try:
            deal.begin_with(checkpointed["deal"])
            return True
        except ODD as error:
            log.warning("the other run's draw is not known: %s: %s", type(error).__name__, error)
    deal.restart()
    return True


def lacks_state(run_uid: str, state: SessionState) -> bool:
    """Whether the checkpoint that the trainer has resumed from, if it has, knows nothing of the draw at its step."""
    checkpointed = own(run_uid, state)
    return state.step > 0 and (checkpointed is None or _step(checkpointed) != state.step)


def _continued(saved: State, state: SessionState) -> Continued:
    sent = [SentBatch.of(one) for one in saved["sent"]]
    if int(saved["step"]) >= state.step:
        return Continued(sent=[batch for batch in sent if batch.step == state.step])
    candidates = [batch for batch in sent if batch.step + 1 == state.step]
    result = state.last if state.last is not None and state.last.step == state.step else None
    if result is not None and result.batch_id:
        return Continued(Unheard(next((batch for batch in candidates if batch.id == result.batch_id), None)))
    if candidates:  # the trainer that made the step is gone, and has saved what came of it
        return Continued(Unheard(candidates[-1]))
    return Continued(Unheard(None) if result is not None else None)


def _nearest(run_uid: str, saved: State | None, state: SessionState, deal: Deal) -> None:
    """Deals from the state that is nearest to the trainer's step, of the steps before it if there is one."""
    known = [found for found in (saved, own(run_uid, state)) if found is not None]
    known.sort(key=lambda found: (_step(found) > state.step, abs(_step(found) - state.step)))
    for found in known:
        if _restored(deal, found):
            told = "the draw of step %d is not known, that of step %d is used: some examples may come twice or not"
            log.warning(told, state.step, _step(found))
            return
    log.warning("the draw of step %d is not known: it begins anew", state.step)
    deal.restart()


def _restored(deal: Deal, known: State, without: Sequence[int] = ()) -> bool:
    try:
        deal.restore(known["deal"], without=without)
    except ODD as error:
        log.warning("a saved draw is of another shape and is not used: %s: %s", type(error).__name__, error)
        return False
    return True


def _step(state: State) -> int:
    """-1 for a state of another shape."""
    step = state.get("step")
    return step if isinstance(step, int) else -1
