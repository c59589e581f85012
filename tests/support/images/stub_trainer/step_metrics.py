"""Metrics of a step that trains nothing: the keys of the real trainer, counts from the batch, plausible numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress
from statistics import fmean

from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun.protocol.trainer import SessionSpec

from tests.support.images.stub_trainer.agreement import versions_of

ENTROPY = 1.5
KL_PER_UPDATE = 1e-6
OLDEST_AGE = 8
"""Age in steps from which tokens are summed together, as in the trainer."""


def learning_metrics(
    samples: Sequence[Sample],
    version: int,
    updates: int,
    beta: float | None,
    mismatches: Mapping[int, Sequence[float]],
) -> dict[str, float]:
    """Return the metrics of the objective after `updates` earlier ones. The loss falls with each update.

    `beta` is the weight of the KL penalty, None without one. `mismatches` has those of tokens by policy version.
    """
    loss = 1 / (1 + updates)
    by_policy = [sample for sample in samples if sample.loss is SampleLoss.policy]
    trainable, policy = _trainable_tokens(samples), _trainable_tokens(by_policy)
    metrics = {"loss/mean": loss, "entropy/all/mean": ENTROPY}
    compared = [*chain.from_iterable(mismatches.values())] or [0.0]
    if policy:
        metrics |= {
            "mismatch_kl/all/mean": fmean(compared),
            "mismatch_kl/all/max": max(compared),
            "importance_ratio/mean": 1.0,
            "importance_ratio/max": 1.0,
            "is_masked/mean": 0.0,
        }
        if beta is not None:
            metrics |= {"kl_penalty/kl": KL_PER_UPDATE * updates, "kl_penalty/beta": beta}
        if _trainable_tokens([sample for sample in by_policy if sample.teacher_logprobs is not None]):
            metrics["teacher_kl/mean"] = loss
        metrics |= _mismatch_by_age(by_policy, version, mismatches)
    if 0 < policy < trainable:
        metrics |= {"loss/policy/mean": loss, "loss/cross_entropy/mean": loss}
    return metrics


def _mismatch_by_age(
    samples: Sequence[Sample], version: int, mismatches: Mapping[int, Sequence[float]]
) -> dict[str, float]:
    """Return the mean mismatch of the tokens of each age, 0 for those without one."""
    by_age: dict[int, list[float]] = {}
    for sampled_by in {of_token for sample in samples for of_token in _versions_of_trainable_tokens(sample)}:
        if sampled_by <= version:
            values = by_age.setdefault(min(version - sampled_by, OLDEST_AGE), [])
            values += mismatches.get(sampled_by, ())
    return {
        f"mismatch_kl/{f'age_{age}' if age else 'on_policy'}/mean": fmean(values or [0.0])
        for age, values in by_age.items()
    }


def _versions_of_trainable_tokens(sample: Sample) -> Iterable[int]:
    return compress(versions_of(sample), sample.loss_mask)


def step_metrics(samples: Sequence[Sample], spec: SessionSpec, rate: float, seconds: float) -> dict[str, float]:
    """Return the metrics of the step itself."""
    trained = [sample for sample in samples if sample.trainable]
    tokens = sum(len(sample.token_ids) for sample in trained)
    asked = min(spec.gradient_accumulation_steps, len(trained))
    return {
        "optim/lr": rate,
        "optim/grad_norm": 1.0,
        "perf/throughput": tokens / seconds,
        "time/forward_backward": seconds,
        "batch/samples": float(len(samples)),
        "batch/tokens": float(tokens),
        "batch/trainable_tokens": float(_trainable_tokens(samples)),
        "batch/micro_batches": float(max(asked, math.ceil(tokens / spec.micro_batch_tokens))),
        "batch/samples_per_row": 1.0,
        "batch/padding": 0.0,
    }


def _trainable_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.trainable for sample in samples)
