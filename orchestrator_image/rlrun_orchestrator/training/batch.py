"""Batches for training steps, as sent to the trainer and as recorded in the saved state.

The id of a batch is computed from its samples. The trainer returns the id with the step, so that a later process can
tell which batch was used, even if two processes have each sent one for the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlrun.api.base.received import InputInvalid
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.train_batch import BatchBody, Sample, SampleLoss, TrainBatch, samples_digest
from rlrun.service.errors import FatalError

from rlrun_orchestrator.data.batch_metrics import batch_metrics, mean
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.groups import Group
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.rollouts.demonstrations import DemonstrationSample, demonstration_metrics
from rlrun_orchestrator.training.serialization import sample_of, trained_tokens, training_samples

TOO_LARGE_ADVICE = (
    "Start a new run with a lower spec.batchSize, or, if spec.tokenBatchSize is set, with a lower "
    "spec.rolloutsPerExample or spec.tokenBatchSize. Alternatively, set spec.trajectoryStrategy to interleaved, which "
    "makes fewer sequences than branching. To continue from this run's newest checkpoint, set spec.checkpointId"
)


@dataclass
class Batch:
    """Batch for the trainer, with the time that its collection took."""

    step: int
    """Optimizer step for which the batch is used: it trains version `step` into `step + 1`."""
    samples: list[Sample]
    examples: list[SampledExample]
    tokens: int
    """Number of tokens that receive a gradient."""
    groups: list[Group] = field(default_factory=list)
    """Groups of the batch. Empty in a supervised step."""
    reward: float | None = None
    """Mean reward over the valid rollouts."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics computed from the batch, by name."""
    seconds: float = 0.0
    """Seconds that the collection took."""
    waited_for_policy: float = 0.0
    """Part of `seconds` spent waiting for a newer policy that the batch needed to be completed."""
    id: str = ""
    """Digest of the samples. Set by `finalize`."""
    body: BatchBody | None = None
    """The batch as the trainer receives it. Set by `finalize`."""

    def finalize(self) -> "Batch":
        """Set id and body. Blocks for a while, because all columns are hashed. Raises FatalError for a batch that is
        too large for the trainer.
        """
        self.id = samples_digest(self.samples)
        try:
            self.body = BatchBody(TrainBatch(self.samples, self.id))
        except InputInvalid as error:
            # A restarted process would collect such a batch again.
            problem = Problem(reason=Reason.BATCH_TOO_LARGE, message=f"{error} {TOO_LARGE_ADVICE}")
            raise FatalError(problem, ExitCode.CONFIGURATION) from error
        return self

    @classmethod
    def from_groups(cls, groups: list[Group], step: int, rollouts_per_example: int) -> "Batch":
        """Create a batch from the groups' rollouts."""
        return cls(
            step,
            training_samples(groups),
            [group.sampled for group in groups],
            trained_tokens(groups),
            groups,
            mean(reward for group in groups for reward in group.rewards),
            batch_metrics(groups, step, rollouts_per_example),
        )

    @classmethod
    def from_demonstrations(cls, samples: Sequence[DemonstrationSample], step: int) -> "Batch":
        """Create a batch of demonstrations."""
        return cls(
            step,
            [sample_of(sample.sequence, step, loss=SampleLoss.cross_entropy) for sample in samples],
            [sample.sampled for sample in samples],
            sum(sample.sequence.sampled_tokens for sample in samples),
            metrics=demonstration_metrics(samples),
        )

    def to_record(self) -> "SentBatch":
        """Return the record of the batch, which is kept in the saved state until the trainer completes the step."""
        ordinals = [sampled.ordinal for sampled in self.examples]
        return SentBatch(self.id, self.step, ordinals, len(self.groups), self.tokens, self.reward, self.metrics)
