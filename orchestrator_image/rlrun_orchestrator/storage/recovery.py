"""Decisions on how a run continues after its orchestrator or trainer was replaced.

The trainer's step is the run's step (docs/design/005). `decide` compares it with what the orchestrator knows: the
newest saved state at the start of a process, and the state in memory during a run. Both cases follow the same rules.
The trainer names the batch with which it took a step; the batch is known if this run recorded sending it.

The sampler state must belong to the trainer's step, so `choose_sampler_state` searches for a state of that step. The
place of this state depends on what happened:

    newest state in S3            the orchestrator was replaced; the trainer kept running (or saved its state on exit)
    state in the checkpoint       the trainer was replaced, or both were replaced
    state stored by this run      the same, but the trainer saved the checkpoint during its own shutdown

Counters include everything the run has done, including lost steps, and always continue from the newest state.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.protocol.trainer import SessionState, StepResult

from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.storage.resume_state import ResumeState

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Continue:
    """Decision for a trainer at the orchestrator's step. Nothing was lost."""


@dataclass(frozen=True)
class Resend:
    """Decision for a trainer that has not taken the step with the current batch."""

    batch_id: str


@dataclass(frozen=True)
class Acknowledge:
    """Decision for a trainer that has taken one step whose result did not arrive."""

    result: StepResult
    batch: SentBatch | None
    """Batch with which the step was taken, or None if it is unknown."""


@dataclass(frozen=True)
class Rewind:
    """Decision for a trainer at a different step, to which the orchestrator moves."""

    step: int
    result: StepResult | None = None
    """Result of the step that led to `step`, if the trainer still has it."""


Decision = Continue | Resend | Acknowledge | Rewind


def decide(
    trainer: SessionState, sent: Sequence[SentBatch], *, at_step: int, in_hand: SentBatch | None, posted: bool
) -> Decision:
    """Compare the trainer with an orchestrator at `at_step`, and return how the orchestrator continues.

    `sent` has the batches recorded for the next step, oldest first. `in_hand` is the newest of these batches if this
    process still has the batch's groups. `posted` is True if the lost trainer was asked to train on this batch.
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
    """Return the result of the step that led to the trainer's current step, or None if the trainer does not have it."""
    return trainer.last if trainer.last is not None and trainer.last.step == trainer.step else None


def trained_batch(result: StepResult, sent: Sequence[SentBatch]) -> SentBatch | None:
    """Return the batch named by the result, the newest batch if it names none, or None if the name is unknown."""
    if not result.batch_id:
        return sent[-1] if sent else None
    return next((batch for batch in sent if batch.id == result.batch_id), None)


# --- states -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownStates:
    """Saved states from which a run may continue."""

    checkpoint: ResumeState | None = None
    """State in the checkpoint that the trainer started from. The state may be another run's."""
    newest: ResumeState | None = None
    """Newest state of this run."""
    kept: ResumeState | None = None
    """State that this run stored for the trainer's step, because the checkpoint lacks it."""


@dataclass(frozen=True)
class Exact:
    """State of exactly the requested step."""

    state: ResumeState


@dataclass(frozen=True)
class OtherRun:
    """State of the run from whose checkpoint this run starts."""

    state: ResumeState


@dataclass(frozen=True)
class Nearest:
    """State of a different step. With this state, some examples are drawn twice or not at all."""

    state: ResumeState


@dataclass(frozen=True)
class Initial:
    """Decision if no state is usable: sampling starts from the beginning."""


SamplerChoice = Exact | OtherRun | Nearest | Initial


def newest_state(run_uid: str, saved: ResumeState | None, checkpoint: ResumeState | None) -> ResumeState | None:
    """Return the newest state of the run: the state saved in S3, or the checkpoint's state if that state belongs to
    this run and is newer.
    """
    own = _own(run_uid, checkpoint)
    if saved is None or own is None:
        return saved or own
    return own if own.step > saved.step else saved


def checkpoint_lacks_state(run_uid: str, step: int, checkpoint: ResumeState | None) -> bool:
    """Return True if the checkpoint of `step` lacks this run's state of that step."""
    own = _own(run_uid, checkpoint)
    return step > 0 and (own is None or own.step != step)


def choose_sampler_state(run_uid: str, step: int, states: KnownStates) -> SamplerChoice:
    """Choose the state from which the draw continues at `step`."""
    checkpoint, newest = states.checkpoint, states.newest
    own = _own(run_uid, checkpoint)
    for state in (newest, own, states.kept):
        if state is not None and state.step == step:
            return Exact(state)
    if step == 0:
        return OtherRun(checkpoint) if checkpoint is not None and own is None else Initial()
    # Prefer an earlier step, because drawing some examples twice is better than skipping them.
    known = [state for state in (newest, own) if state is not None]
    nearest = min(known, key=lambda state: (state.step > step, abs(state.step - step)), default=None)
    return Nearest(nearest) if nearest is not None else Initial()


def restore_sampler(
    sampler: ExampleSampler, choice: SamplerChoice, step: int, outstanding: Sequence[SampledExample] = ()
) -> None:
    """Continue the draw at `step` from the chosen state. The `outstanding` examples keep their groups."""
    match choice:
        case Exact(state):
            sampler.restore(state.deal, outstanding)
        case OtherRun(state):
            sampler.start_from_run(state.deal, outstanding)
        case Nearest(state):
            message = "no sampler state for step %d, using the state of step %d; examples may repeat or be skipped"
            log.warning(message, step, state.step)
            sampler.restore(state.deal, outstanding)
        case Initial():
            if step > 0:
                log.warning("no sampler state for step %d: starting with the first epoch", step)
            sampler.reset(outstanding)


def _own(run_uid: str, checkpoint: ResumeState | None) -> ResumeState | None:
    return checkpoint if checkpoint is not None and checkpoint.run == run_uid else None
