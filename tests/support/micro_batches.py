"""All micro-batches of a batch, as a trainer of one process computes them one after the other."""

from typing import Any

from rlrun.protocol.train_batch import Sample
from rlrun_trainer.optimization.packing import MicroBatch, pack
from rlrun_trainer.optimization.sampling_distribution import PLAIN, SamplingDistribution


def micro_batches(
    samples: list[Sample], *args: Any, distribution: SamplingDistribution = PLAIN, **options: Any
) -> list[MicroBatch]:
    """Return the micro-batches that `pack` makes with these arguments."""
    layouts = pack(samples, *args, **options)
    return [MicroBatch.of([[samples[i] for i in row] for row in layout.rows], distribution) for layout in layouts]
