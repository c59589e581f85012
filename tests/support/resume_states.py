"""Resume states of an orchestrator, and the records of batches that it sent."""

from rlrun_orchestrator.data.example_buffer import BufferSettings, Example, ExampleBuffer
from rlrun_orchestrator.data.example_sampler import ExampleSampler
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.storage.resume_state import ResumeState
from rlrun_orchestrator.training.batch import Batch

STEP = 3
"""Where the orchestrator is."""


def sampler() -> ExampleSampler:
    return ExampleSampler(ExampleBuffer({"a": 50}, None, BufferSettings(filtering=True)))


def state_after(step: int, drawn: int, *, run: str = "uid") -> ResumeState:
    """The state after `step` steps with `drawn` examples, of which the last two are under way."""
    progress, one = RunProgress(), sampler()
    progress.reward_errors = drawn
    sampled = [found for _ in range(drawn) if (found := one.next_example(["a"])) is not None]
    one.buffer.record_reward(Example("a", 7), 1.0)
    batch = Batch(step, [], sampled[-2:], 10, metrics={"reward/mean": 0.5}, reward=0.5, id="x")
    return ResumeState(
        run=run, step=step, board=progress.to_state(), deal=one.snapshot(sampled[-2:]), sent=[batch.to_record()]
    )


def sent(*names: str) -> list[SentBatch]:
    return [SentBatch(name, STEP, [8, 9], 2, 10, 0.5, {}) for name in names]
