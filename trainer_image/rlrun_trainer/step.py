"""One optimizer step: pack, forward and backward per micro-batch, clip, update. All or nothing.

Whatever goes wrong before the update (a loss that is no number, memory that runs out) leaves weights, moments, counters
and random numbers as they were.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from rlrun.schema.wire import Sample

from rlrun_trainer.loss import CHUNK_ELEMENTS, policy_loss, token_logprobs
from rlrun_trainer.packing import MicroBatch, pack
from rlrun_trainer.problems import OUT_OF_MEMORY, UNPROCESSABLE, Refused
from rlrun_trainer.slots import BaseModel, Slot


@dataclass(frozen=True)
class StepPlan:
    """What a step needs to know beside its samples."""

    learning_rate: float
    temperature: float
    micro_batch_tokens: int
    max_grad_norm: float
    version: int = 0
    """Of the policy as it is before the step."""


def train_step(base: BaseModel, slot: Slot, samples: Sequence[Sample], plan: StepPlan) -> dict[str, float]:
    """Makes one AdamW update on the slot's adapter and returns the step's metrics.

    The gradient is that of `policy_loss` summed over all samples and divided by the number of trainable tokens. Raises
    Refused (StepNotFinite, TrainerOutOfMemory) with the slot unchanged.
    """
    started = time.perf_counter()
    base.activate(slot)
    batches = pack(samples, plan.micro_batch_tokens, base.single_row)
    trainable = sum(len(batch.targets) for batch in batches)
    parameters = list(slot.parameters.values())
    with _memory_limits(plan), _random_state(slot), _clean_gradients(slot):
        if base.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(base.device)
        sums = [_backward(base, batch, plan, trainable) for batch in batches]
        norm = torch.nn.utils.clip_grad_norm_(parameters, plan.max_grad_norm)
        # One transfer from the device for everything that is to be known.
        table = torch.stack(sums).cpu()
        loss, entropy, mismatch, masked, on_policy, on_policy_kl = table[:, :6].sum(0).tolist()
        worst = float(table[:, 6].max())
        forward_backward = time.perf_counter() - started
        if not all(map(_finite, (loss, mismatch, norm := float(norm)))):
            raise Refused(
                UNPROCESSABLE,
                "StepNotFinite",
                f"loss {loss}, mismatch {mismatch / trainable}, gradient norm {norm}: the update was not made. Lower "
                "learningRate, or continue from an older checkpoint",
            )
        for group in slot.optimizer.param_groups:
            group["lr"] = plan.learning_rate
        slot.optimizer.step()
        slot.updates += 1
    seconds = time.perf_counter() - started
    tokens = sum(batch.tokens for batch in batches)
    metrics = {
        "loss/mean": loss,
        "entropy/all/mean": entropy / trainable,
        "mismatch_kl/all/mean": mismatch / trainable,
        "mismatch_kl/all/max": worst,
        "is_masked/mean": masked / trainable,
        "optim/lr": plan.learning_rate,
        "optim/grad_norm": norm,
        "perf/throughput": tokens / seconds,
        "time/forward_backward": forward_backward,
        "batch/samples": float(len(samples)),
        "batch/tokens": float(tokens),
        "batch/trainable_tokens": float(trainable),
        "batch/micro_batches": float(len(batches)),
        "batch/padding": 1 - tokens / sum(batch.input_ids.numel() for batch in batches),
    }
    if on_policy:
        metrics["mismatch_kl/on_policy/mean"] = on_policy_kl / on_policy
    if base.device.type == "cuda":
        metrics["perf/peak_memory"] = torch.cuda.max_memory_allocated(base.device) / 2**30
    return metrics


def _backward(base: BaseModel, batch: MicroBatch, plan: StepPlan, trainable: int) -> torch.Tensor:
    """Adds the micro-batch's gradient.

    Returns [loss, entropy, mismatch, masked tokens, tokens that the present version drew, their mismatch, largest
    mismatch of a token]; all but the last are sums.
    """
    batch = batch.to(base.device)
    hidden = base.hidden(batch.input_ids, batch.position_ids).flatten(0, 1)[batch.predicting]
    chunk = max(1, CHUNK_ELEMENTS // base.vocab_size)
    logprobs, entropy = token_logprobs(hidden, batch.targets, base.head, plan.temperature, chunk)
    result = policy_loss(logprobs, batch.engine_logprobs, batch.advantages, batch.sample_of, batch.samples)
    loss = result.loss / trainable
    loss.backward()
    kl = result.mismatch_kl
    # Tokens of the very policy that is trained show how far the two programs differ; the others differ by age as well.
    present = batch.versions == plan.version
    sums = [loss.detach(), entropy.sum(), kl.sum(), (~result.kept).sum(), present.sum(), kl[present].sum(), kl.max()]
    return torch.stack([value.double() for value in sums])


def _finite(value: float) -> bool:
    return value - value == 0.0


@contextmanager
def _clean_gradients(slot: Slot) -> Iterator[None]:
    try:
        yield
    finally:
        slot.optimizer.zero_grad(set_to_none=True)


@contextmanager
def _random_state(slot: Slot) -> Iterator[None]:
    """The slot's own random numbers (dropout of its adapter) for the time of the step; kept only if it succeeds."""
    cuda = "cuda" in slot.rng
    torch.set_rng_state(slot.rng["cpu"])
    if cuda:
        torch.cuda.set_rng_state(slot.rng["cuda"])
    yield
    slot.rng["cpu"] = torch.get_rng_state()
    if cuda:
        slot.rng["cuda"] = torch.cuda.get_rng_state()


@contextmanager
def _memory_limits(plan: StepPlan) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # A CPU that has no memory left says so in a plain RuntimeError.
        plain = isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError)
        if plain and "can't allocate memory" not in str(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise Refused(
            OUT_OF_MEMORY,
            "TrainerOutOfMemory",
            f"a step with micro-batches of {plan.micro_batch_tokens} tokens does not fit into the trainer's memory: "
            "lower the RLModel's trainer.microBatchTokens or seqLen, or give the trainer more memory",
        ) from error
