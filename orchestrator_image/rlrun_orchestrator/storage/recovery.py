"""How a run continues after the orchestrator or its trainer was replaced. Pure.

The trainer's step is the run's step (docs/design/005). `decide` compares it with what the orchestrator knows, which at
the start of a process is the newest saved state, and in the middle of a run what this process remembers. Both cases are
decided alike. Which batch a step was made of is what the trainer says: a batch is known if it is among those sent.

The draw of examples has to be that of the trainer's step, so `choose_sampler_state` looks for a state of that step:

    the newest state in S3        the orchestrator was replaced, the trainer lived (or saved what it had when it ended)
    the one in the checkpoint     the trainer was replaced, or both were
    the one kept beside it        the same, where the trainer saved the checkpoint by itself when it was told to end

Counters are another matter: they count all that the run has done, lost steps included, and continue from the newest.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.protocol.trainer import SessionState, StepResult

from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.storage.saved_state import SavedState

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Continue:
    """The trainer is where the orchestrator is: nothing was lost."""


@dataclass(frozen=True)
class Resend:
    """The trainer has not made the step of the batch in hand."""

    batch_id: str


@dataclass(frozen=True)
class Acknowledge:
    """The trainer has made one step whose result did not arrive."""

    result: StepResult
    batch: SentBatch | None
    """Batch that the step was made of. None when it is unknown."""


@dataclass(frozen=True)
class Rewind:
    """The trainer is at another step, and the orchestrator has to follow."""

    step: int
    result: StepResult | None = None
    """Result of the step that led there, if the trainer knows it."""


Decision = Continue | Resend | Acknowledge | Rewind


def decide(
    trainer: SessionState, sent: Sequence[SentBatch], *, at_step: int, in_hand: SentBatch | None, posted: bool
) -> Decision:
    """Compare the trainer with an orchestrator at `at_step`.

    `sent` are the batches recorded for the next step, oldest first. `in_hand` is the newest of them if this process
    still has its groups, and `posted` tells whether the trainer that is gone was asked to train on it.
    """
    result = last_result(trainer)
    if trainer.step == at_step:
        return Continue() if in_hand is None else Resend(in_hand.id)
    if trainer.step == at_step + 1:
        trained = list(sent) if posted or in_hand is None else list(sent[:-1])
        if result is not None and (result.batch_id or not trained):
            return Acknowledge(result, trained_batch(result, trained))
        if trained:
            bare = StepResult(step=trainer.step, policy=trainer.policy, metrics={})
            return Acknowledge(result or bare, trained[-1])
    return Rewind(trainer.step, result)


def last_result(trainer: SessionState) -> StepResult | None:
    """Return the result of the step that led to the trainer's, if it knows it."""
    return trainer.last if trainer.last is not None and trainer.last.step == trainer.step else None


def trained_batch(result: StepResult, sent: Sequence[SentBatch]) -> SentBatch | None:
    """Return the batch that the result names, or the newest one if it names none. None for an unknown one."""
    if not result.batch_id:
        return sent[-1] if sent else None
    return next((batch for batch in sent if batch.id == result.batch_id), None)


# --- states -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownStates:
    """States that are at hand when a run continues."""

    checkpoint: SavedState | None = None
    """In the checkpoint that the trainer started from. It may be another run's."""
    newest: SavedState | None = None
    """The newest of this run."""
    kept: SavedState | None = None
    """The one that this run kept for the trainer's step, because the checkpoint has none of it."""


@dataclass(frozen=True)
class Exact:
    """A state of the very step."""

    state: SavedState


@dataclass(frozen=True)
class OtherRun:
    """The state of the run whose checkpoint this run starts from."""

    state: SavedState


@dataclass(frozen=True)
class Nearest:
    """A state of another step: some examples are drawn twice, or not at all."""

    state: SavedState


@dataclass(frozen=True)
class Initial:
    """The beginning of the draw."""


SamplerChoice = Exact | OtherRun | Nearest | Initial


def newest_state(run_uid: str, saved: SavedState | None, checkpoint: SavedState | None) -> SavedState | None:
    """Return the state that knows most of what the run has done: the one in S3, unless the run's checkpoint has one of
    a later step because S3 did not get the other in time.
    """
    own = _own(run_uid, checkpoint)
    if saved is None or own is None:
        return saved or own
    return own if own.step > saved.step else saved


def checkpoint_lacks_state(run_uid: str, step: int, checkpoint: SavedState | None) -> bool:
    """Return whether the checkpoint of `step` does not hold this run's state of that step."""
    own = _own(run_uid, checkpoint)
    return step > 0 and (own is None or own.step != step)


def choose_sampler_state(run_uid: str, step: int, states: KnownStates) -> SamplerChoice:
    """Choose what the draw continues from at `step`."""
    checkpoint, newest = states.checkpoint, states.newest
    own = _own(run_uid, checkpoint)
    for state in (newest, own, states.kept):
        if state is not None and state.step == step:
            return Exact(state)
    if step == 0:
        return OtherRun(checkpoint) if checkpoint is not None and own is None else Initial()
    # Of the steps before it if there is one: to draw some examples twice is better than to leave them out.
    known = [state for state in (newest, own) if state is not None]
    nearest = min(known, key=lambda state: (state.step > step, abs(state.step - step)), default=None)
    return Nearest(nearest) if nearest is not None else Initial()


def restore_sampler(
    sampler: ExampleSampler, choice: SamplerChoice, step: int, outstanding: Sequence[SampledExample] = ()
) -> None:
    """Let the draw continue at `step` from what was chosen, while the examples `outstanding` are still under way."""
    match choice:
        case Exact(state):
            sampler.restore(state.deal, outstanding)
        case OtherRun(state):
            sampler.start_from_run(state.deal, outstanding)
        case Nearest(state):
            message = "the draw of step %d is not known, that of step %d is used: some examples may come twice or not"
            log.warning(message, step, state.step)
            sampler.restore(state.deal, outstanding)
        case Initial():
            if step > 0:
                log.warning("the draw of step %d is not known: it begins anew", step)
            sampler.reset(outstanding)


def _own(run_uid: str, checkpoint: SavedState | None) -> SavedState | None:
    return checkpoint if checkpoint is not None and checkpoint.run == run_uid else None
