"""What one step trains on, as the trainer gets it and as the state keeps it while the trainer has it.

A batch has a name that follows from its samples. The trainer gives it back with the step, so that whoever asks knows
which batch the step was made of, even where two processes have each sent one for it.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun_orchestrator.data.batch_metrics import batch_metrics, mean
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.groups import Group
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.rollouts.demonstrations import DemonstrationSample, demonstration_metrics, demonstration_samples
from rlrun_orchestrator.rollouts.distillation import teacher_metrics
from rlrun_orchestrator.training.serialization import trained_tokens, training_samples


@dataclass
class Batch:
    """A batch on its way to the trainer, and what collecting it cost."""

    step: int
    """The optimizer step that it is for: it trains version `step` into `step + 1`."""
    samples: list[dict[str, Any]]
    """`Sample`s under their JSON names."""
    examples: list[SampledExample]
    tokens: int
    """That are trained."""
    groups: list[Group] = field(default_factory=list)
    """None in a supervised step."""
    reward: float | None = None
    """Mean over its rollouts."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What its line of metrics says of it."""
    seconds: float = 0.0
    """It took to collect."""
    waited_for_policy: float = 0.0
    """Seconds of these in which only a newer policy could help."""
    id: str = ""
    """See `named`."""
    body: bytes = b""
    """Its `TrainBatch` as JSON."""

    def finalize(self) -> "Batch":
        """Gives it its name and its body, which takes a moment: megabytes of numbers become text."""
        samples = json.dumps(self.samples, separators=(",", ":"))
        self.id = hashlib.blake2b(samples.encode(), digest_size=8).hexdigest()
        self.body = f'{{"batchId":"{self.id}","samples":{samples}}}'.encode()
        return self

    @classmethod
    def from_groups(cls, groups: list[Group], step: int, rollouts_per_example: int) -> "Batch":
        """Rollouts."""
        return cls(
            step,
            training_samples(groups),
            [group.dealt for group in groups],
            trained_tokens(groups),
            groups,
            mean(reward for group in groups for reward in group.rewards),
            batch_metrics(groups, step, rollouts_per_example) | teacher_metrics(groups),
        )

    @classmethod
    def from_demonstrations(cls, lessons: Sequence[DemonstrationSample], step: int) -> "Batch":
        """Demonstrations."""
        return cls(
            step,
            demonstration_samples(lessons, step),
            [lesson.dealt for lesson in lessons],
            sum(sum(lesson.sequence.loss_mask) for lesson in lessons),
            metrics=demonstration_metrics(lessons),
        )

    def to_record(self) -> "SentBatch":
        """What is kept of it while the trainer has it."""
        ordinals = [dealt.ordinal for dealt in self.examples]
        return SentBatch(self.id, self.step, ordinals, len(self.groups), self.tokens, self.reward, self.metrics)
