"""Optimizer step: pack, forward and backward per micro-batch, clip, update.

A step runs in units: its micro-batches and its update. Between them, other slots may compute on the same model.
Gradients and the random state belong to the slot, so the units of other slots do not change a single bit of the step.

A failure before the update (a non-finite loss, not enough memory) leaves weights, moments, counters and random state
unchanged. A failed update ends the process.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from rlrun.api.run_sections.training import KlPenalty, Loss
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.train_batch import Sample
from rlrun.service.errors import ProblemError

from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.device_memory import is_out_of_memory, out_of_memory, release_memory
from rlrun_trainer.model.peft_format import NAME_PREFIX
from rlrun_trainer.optimization.batch_share import BatchShare, BatchTotals, share_batch
from rlrun_trainer.optimization.kl_penalty import first_beta, next_beta
from rlrun_trainer.optimization.mfu import model_step_flops, peak_flops
from rlrun_trainer.optimization.objective import AGE_MISMATCHES, AGE_TOKENS, MAXIMA, SUMS, Objective, backward
from rlrun_trainer.optimization.packing import Layout, MicroBatch, pack
from rlrun_trainer.optimization.sampling_distribution import PLAIN, SamplingDistribution
from rlrun_trainer.runtime.compute_thread import Units, finish
from rlrun_trainer.runtime.process_group import StepAborted, full_tensor

log = logging.getLogger(__name__)

R = TypeVar("R")

SHOWN_LAYERS = 5
"""Maximum number of layers that a warning names."""


@dataclass(frozen=True)
class StepPlan:
    """Parameters of a step."""

    learning_rate: float
    micro_batch_tokens: int
    max_grad_norm: float
    weight_decay: float = 0.0
    version: int = 0
    """Version of the policy before the step."""
    distribution: SamplingDistribution = PLAIN
    """Distribution from which tokens were sampled in samples without sampling parameters of their own."""
    loss: Loss = field(default_factory=Loss)
    kl_penalty: KlPenalty | None = None
    micro_batches: int = 1
    """Minimum number of micro-batches, if there are enough samples."""

    @property
    def penalty(self) -> KlPenalty | None:
        """KL penalty, or None if it is disabled."""
        return self.kl_penalty if self.kl_penalty is not None and self.kl_penalty.enabled else None


def train_step(base: BaseModel, slot: AdapterSlot, samples: Sequence[Sample], plan: StepPlan) -> dict[str, float]:
    """Run a step without pauses between its units (see `step_units`)."""
    return finish(step_units(base, slot, samples, plan))


def step_units(
    base: BaseModel, slot: AdapterSlot, samples: Sequence[Sample], plan: StepPlan
) -> Units[dict[str, float]]:
    """Apply one AdamW update to the slot's weights and return the step's metrics. Durations and rates in the metrics
    exclude the pauses between units (see `do_passes`).

    The update uses the gradient of the step's objective (see `objective`). `samples` are the whole batch on the first
    process, and ignored on the others. Raises ProblemError (StepNotFinite, TrainerOutOfMemory) with the slot unchanged,
    or StepAborted if the update fails, or a pass in which other processes wait.
    """
    started = time.perf_counter()
    penalty = plan.penalty
    world = base.world
    layouts: list[Layout] = []
    if world.is_leader:
        # Use at least one micro-batch per process, if there are enough samples.
        at_least = max(plan.micro_batches, world.size)
        layouts = pack(samples, plan.micro_batch_tokens, base.single_row, at_least, base.shares_rows)
    share = share_batch(world, samples, layouts)
    totals = share.totals
    parameters = list(slot.parameters.values())
    beta = first_beta(penalty, slot.kl_beta) if penalty is not None else None
    objective = Objective(plan.loss, beta, plan.version, totals.trainable)
    random_states = dict(slot.rng)
    with memory_limits(plan.micro_batch_tokens, base.loader.memory_advice), clean_gradients(slot):
        with world.all_or_none():
            parts, paused, most_memory = yield from _accumulate(
                base, slot, share, plan.distribution, objective, random_states
            )
            check_memory(slot)
        world.all_reduce_gradients(parameters)
        _check_gradients(slot)
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(parameters, plan.max_grad_norm))
        # Use a single transfer from the device for all metrics.
        added = world.all_reduce_sum(torch.stack([sums for sums, _ in parts]).sum(0))
        largest = world.all_reduce_max(torch.stack([maxima for _, maxima in parts]).amax(0))
        figures = torch.cat([added, largest, norm.double()[None]]).tolist()
        forward_backward = time.perf_counter() - started - paused
        metrics = _learning_metrics(totals, figures[: len(SUMS)], figures[len(SUMS) : -1], beta)
        if not all(map(is_finite, (metrics["loss/mean"], metrics.get("mismatch_kl/all/mean", 0.0), figures[-1]))):
            raise ProblemError.of(
                UNPROCESSABLE,
                Reason.STEP_NOT_FINITE,
                f"Loss {metrics['loss/mean']}, mismatch {metrics.get('mismatch_kl/all/mean')} or gradient norm "
                f"{figures[-1]} is not finite; no update was made. Lower learningRate, or continue from an older "
                "checkpoint.",
            )
        apply_gradient(slot, lr=plan.learning_rate, weight_decay=plan.weight_decay)
        slot.rng = random_states
        if penalty is not None and beta is not None and "kl_penalty/kl" in metrics:
            slot.kl_beta = next_beta(penalty, beta, metrics["kl_penalty/kl"])
    seconds = time.perf_counter() - started - paused
    metrics |= {
        "optim/lr": plan.learning_rate,
        "optim/grad_norm": figures[-1],
        "perf/throughput": totals.tokens / seconds,
        "time/forward_backward": forward_backward,
        "batch/samples": float(totals.samples),
        "batch/tokens": float(totals.tokens),
        "batch/trainable_tokens": float(totals.trainable),
        "batch/micro_batches": float(totals.micro_batches),
        "batch/samples_per_row": totals.packed / totals.rows,
        "batch/padding": 1 - totals.tokens / totals.cells,
    }
    if base.device.type == "cuda":
        used = torch.tensor(max(most_memory, torch.cuda.max_memory_allocated(base.device)), device=base.device)
        metrics["perf/peak_memory"] = int(world.all_reduce_max(used)) / 2**30
        if peak := peak_flops(torch.cuda.get_device_name(base.device)):
            # Not every architecture has the fields, and the update has already been made.
            with suppress(Exception):
                work = model_step_flops(base.model, [len(sample.token_ids) for sample in samples])
                metrics["perf/mfu"] = 100 * work / seconds / (peak * world.size)
    return metrics


def _accumulate(
    base: BaseModel,
    slot: AdapterSlot,
    share: BatchShare,
    distribution: SamplingDistribution,
    objective: Objective,
    random_states: dict[str, torch.Tensor],
) -> Units[tuple[list[tuple[torch.Tensor, torch.Tensor]], float, int]]:
    """Add the gradients of this process's micro-batches, and advance `random_states`.

    Returns SUMS and MAXIMA of each micro-batch, with zeros for padding passes, and the seconds and bytes that
    `do_passes` returns. The first call with policy tokens and a penalty fixes the slot's reference.
    """

    def compute(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if number < share.own:
            return backward(base, slot, MicroBatch.of(share.micro_batches[number], distribution), objective)
        # Sharded weights need all processes in every pass, so repeat the last micro-batch with weight 0.
        batch = MicroBatch.of(share.micro_batches[-1], distribution)
        sums, maxima = backward(base, slot, batch, replace(objective, trainable=math.inf))
        return torch.zeros_like(sums), torch.zeros_like(maxima)

    base.guard.failure = None
    try:
        if objective.beta is not None and share.totals.policy_tokens:
            base.fix_reference(slot)
        parts, paused, most_memory = yield from do_passes(base, slot, random_states, share.passes, compute)
    except Exception as error:
        if base.world.size > 1:
            raise StepAborted(str(error)) from error
        raise
    base.guard.settle()
    return parts, paused, most_memory


def do_passes(
    base: BaseModel,
    slot: AdapterSlot,
    random_states: dict[str, torch.Tensor],
    passes: int,
    compute: Callable[[int], R],
) -> Units[tuple[list[R], float, int]]:
    """Call `compute` with the number of each pass, using the slot's adapter and `random_states`, which advance.
    Pauses after each pass, unless the trainer has several processes or the slot trains all weights.

    Returns the results, the seconds between the units, and the peak GPU memory in bytes before the last pause, which is
    0 without a GPU or without pauses.
    """
    results = []
    paused, most_memory = 0.0, 0
    on_gpu = base.device.type == "cuda"
    shares_model = base.world.size == 1 and slot.shape is not None
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(base.device)
    for number in range(passes):
        base.activate(slot)
        with _random_numbers(random_states):
            results.append(compute(number))
        if shares_model:
            if on_gpu:
                # Otherwise the next run's unit would wait for this one, and be charged for it.
                torch.cuda.synchronize(base.device)
                most_memory = max(most_memory, torch.cuda.max_memory_allocated(base.device))
            began = time.perf_counter()
            yield
            paused += time.perf_counter() - began
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(base.device)
    return results, paused, most_memory


def apply_gradient(slot: AdapterSlot, **settings: Any) -> None:
    """Update the slot's weights from its gradients, with these AdamW settings. Raises StepAborted if that fails."""
    for group in slot.optimizer.param_groups:
        group.update(settings)
    try:
        slot.optimizer.step()
    except Exception as error:
        # Some moments have changed, even if the cause is a lack of memory that `check_memory` did not foresee.
        raise StepAborted(str(error)) from error
    slot.updates += 1


def _check_gradients(slot: AdapterSlot) -> None:
    """Add a warning that names the adapter's layers without a gradient, in the first step in which any layer has one.

    A new adapter's `lora_A` has no gradient in any layer, because its `lora_B` is zero.
    """
    if slot.gradients_checked or slot.shape is None:
        return
    gradients = {name: parameter.grad for name, parameter in slot.parameters.items() if ".lora_B." in name}
    missed = [name for name, gradient in gradients.items() if gradient is None or not gradient.any()]
    if len(missed) == len(gradients):
        return
    slot.gradients_checked = True
    if not missed:
        return
    shown = [name.removeprefix(NAME_PREFIX).rpartition(".lora_B.")[0] for name in missed[:SHOWN_LAYERS]]
    problem = Problem(
        reason=Reason.ADAPTER_WITHOUT_GRADIENT,
        message=f"In one step, {len(missed)} of {len(gradients)} layers with an adapter received no gradient and "
        f"stay as in the base model: {', '.join(shown)}{', ...' if len(missed) > SHOWN_LAYERS else ''}. Remove these "
        "layers from `lora.targetModules`.",
    )
    log.warning("%s: %s", slot.name, problem.message)
    slot.warnings.append(problem)


def check_memory(slot: AdapterSlot) -> None:
    """Allocate and free the memory that AdamW's update needs. Raises torch.OutOfMemoryError if it does not fit.

    AdamW itself allocates a buffer for each weight after it has changed counters and moments. Its first update also
    allocates both moments.
    """
    count = 1 if slot.optimizer.state else 3
    buffers = [torch.empty_like(p) for p in slot.parameters.values() if p.grad is not None for _ in range(count)]
    del buffers


def _learning_metrics(
    totals: BatchTotals, sums: Sequence[float], maxima: Sequence[float], beta: float | None
) -> dict[str, float]:
    """Return the metrics of the whole batch from its SUMS and MAXIMA. Metrics of the policy are left out
    if the batch has no policy tokens.
    """
    total: Mapping[str, float] = dict(zip(SUMS, sums, strict=True))
    largest: Mapping[str, float] = dict(zip(MAXIMA, maxima, strict=True))
    trainable, policy = totals.trainable, totals.policy_tokens
    policy_loss = total["policy_loss"] if beta is None else total["policy_loss"] + beta * total["kl"]
    metrics = {
        "loss/mean": (policy_loss + total["cross_entropy"]) / trainable,
        "entropy/all/mean": total["entropy"] / trainable,
    }
    if policy:
        metrics |= {
            "mismatch_kl/all/mean": total["mismatch"] / policy,
            "mismatch_kl/all/max": largest["mismatch"],
            "importance_ratio/mean": total["ratio"] / policy,
            "importance_ratio/max": largest["ratio"],
            "is_masked/mean": total["masked"] / policy,
        }
        if beta is not None:
            metrics |= {"kl_penalty/kl": total["kl"] / policy, "kl_penalty/beta": beta}
        if total["taught"]:
            metrics["teacher_kl/mean"] = total["teacher_kl"] / total["taught"]
        for age, (tokens, mismatch) in enumerate(zip(AGE_TOKENS, AGE_MISMATCHES, strict=True)):
            if total[tokens]:
                metrics[f"mismatch_kl/{f'age_{age}' if age else 'on_policy'}/mean"] = total[mismatch] / total[tokens]
    if 0 < policy < trainable:
        metrics["loss/policy/mean"] = policy_loss / policy
        metrics["loss/cross_entropy/mean"] = total["cross_entropy"] / (trainable - policy)
    return metrics


def is_finite(value: float) -> bool:
    """Return True if the value is neither infinite nor NaN."""
    return value - value == 0.0


@contextmanager
def clean_gradients(slot: AdapterSlot) -> Iterator[None]:
    """Context after which the slot has no gradient."""
    try:
        yield
    finally:
        slot.optimizer.zero_grad(set_to_none=True)


@contextmanager
def _random_numbers(states: dict[str, torch.Tensor]) -> Iterator[None]:
    """Context that sets torch's random states, which adapter dropout uses, and stores the advanced states in
    `states`.
    """
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
    yield
    states["cpu"] = torch.get_rng_state()
    if "cuda" in states:
        states["cuda"] = torch.cuda.get_rng_state()


@contextmanager
def memory_limits(micro_batch_tokens: int, advice: str) -> Iterator[None]:
    """Context in which a failed allocation raises ProblemError (TrainerOutOfMemory) or, if the update failed,
    StepAborted with that problem. The context must not change the slot before the update.
    """
    try:
        yield
    except (StepAborted, torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        cause = error.__cause__ if isinstance(error, StepAborted) else error
        if not is_out_of_memory(cause):
            raise
        release_memory(cause)
        refusal = out_of_memory(
            f"A step with micro-batches of {micro_batch_tokens} tokens does not fit into the trainer's memory. "
            f"Lower the RLModel's trainer.microBatchTokens or seqLen. {advice}"
        )
        if isinstance(error, StepAborted):
            error.problem = refusal.problem
            raise
        raise refusal from error
