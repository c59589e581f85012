"""Commands of client programs: `forward_backward` adds to the gradient of the program's slot, `optim_step` applies it.

The gradient belongs to the slot and stays until `optim_step`, even while other slots compute. Like a step (see `step`),
`forward_backward` runs in units, between which other slots may compute. Its result depends only on the slot and the
command, bit for bit. If it fails, the slot is unchanged. A failed `optim_step` may clear the gradient.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.client_command import OptimStep
from rlrun.service.errors import ProblemError
from torch.utils.checkpoint import checkpoint

from rlrun_trainer.model.base_model import AdapterSlot, BaseModel, Head
from rlrun_trainer.model.device_memory import refuses_without_memory
from rlrun_trainer.model.row_layout import lay_out
from rlrun_trainer.optimization.client_batch import ClientBatch
from rlrun_trainer.optimization.client_loss import LossInputs, weigh
from rlrun_trainer.optimization.objective import chunk_tokens
from rlrun_trainer.optimization.packing import pack_lengths
from rlrun_trainer.optimization.sampling_distribution import PLAIN, token_logprobs
from rlrun_trainer.optimization.step import apply_gradient, check_memory, do_passes, is_finite, memory_limits
from rlrun_trainer.runtime.compute_thread import Units

SMALLEST_EPSILON = 1e-30
"""Minimum epsilon of AdamW. float32 would round a much smaller epsilon to 0, and the update of a parameter that never
had a gradient would divide by 0.
"""


def forward_backward_units(
    base: BaseModel, slot: AdapterSlot, batch: ClientBatch, micro_batch_tokens: int
) -> Units[tuple[dict[str, float], list[bytes]]]:
    """Add the gradient of the batch's loss to the slot's gradient. Returns metrics, and log p of each datum's targets
    as bytes: float32 [T], or [T, K] in row-major order.

    If `batch.forward_only` is True, the slot does not change, and dropout is disabled. Raises ProblemError
    (StepNotFinite, TrainerOutOfMemory).
    """
    datums = batch.datums
    passes = _pack(base, batch, micro_batch_tokens)
    logprobs = [b""] * len(datums)
    random_states = dict(slot.rng)
    computing = slot
    if batch.forward_only:
        computing = replace(slot, factors={name: replace(f, dropout=0.0) for name, f in slot.factors.items()})

    def compute(number: int) -> torch.Tensor:
        with torch.no_grad() if batch.forward_only else nullcontext():
            loss, found = _compute(base, _ClientMicroBatch.of(batch, passes[number]).to(base.device), batch)
        if not batch.forward_only:
            loss.backward()
        parts = found.cpu().numpy()
        for index in (index for row in passes[number] for index in row):
            logprobs[index], parts = parts[: len(datums[index].tokens)].tobytes(), parts[len(datums[index].tokens) :]
        return torch.stack([loss.detach(), found.double().sum()])

    with memory_limits(micro_batch_tokens, base.loader.memory_advice), _added_gradient(slot):
        results, _, _ = yield from do_passes(base, computing, random_states, len(passes), compute)
        new = [parameter.grad for parameter in slot.parameters.values() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(new).double().to(base.device)
        loss, seen, norm = torch.cat([torch.stack(results).sum(0), norm[None]]).tolist()
        if not (is_finite(loss) and is_finite(norm) and seen == seen):
            raise ProblemError.of(
                UNPROCESSABLE,
                Reason.STEP_NOT_FINITE,
                f"Loss {loss} or its gradient norm {norm} is not finite, or a log-probability is not a number; the "
                "gradient is unchanged. Check the loss inputs, lower the learning rate, or load an older checkpoint.",
            )
        if not batch.forward_only:
            slot.rng = random_states
    return {"loss:sum": loss, "tokens:sum": float(sum(len(datum.tokens) for datum in datums))}, logprobs


def optim_step(base: BaseModel, slot: AdapterSlot, command: OptimStep) -> dict[str, float]:
    """Apply one AdamW update with the slot's gradient, clear the gradient, and return metrics. Parameters without a
    gradient are updated with a gradient of zero, so their moments decay.

    Raises ProblemError with the weights and moments unchanged: CommandInvalid, TrainerOutOfMemory, or StepNotFinite,
    which clears the gradient. Raises StepAborted if the update fails.
    """
    if command.eps < SMALLEST_EPSILON:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.COMMAND_INVALID,
            f"adam_params.eps is {command.eps:g}. Use at least {SMALLEST_EPSILON:g}.",
        )
    parameters = list(slot.parameters.values())
    needed = f"An update does not fit into the trainer's memory. Use a lower rank. {base.loader.memory_advice}"
    with refuses_without_memory(needed):
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        check_memory(slot)
        gradient = [parameter.grad for parameter in parameters]
        norm = torch.nn.utils.get_total_norm(gradient)
    if not is_finite(float(norm)):
        slot.optimizer.zero_grad(set_to_none=True)
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.STEP_NOT_FINITE,
            f"Gradient norm {float(norm)} is not finite; no update was made, and the gradient was cleared. Scale the "
            "losses down.",
        )
    if command.grad_clip_norm:
        torch.nn.utils.clip_grads_with_norm_(parameters, command.grad_clip_norm, norm)
    apply_gradient(
        slot,
        lr=command.learning_rate,
        betas=(command.beta1, command.beta2),
        eps=command.eps,
        weight_decay=command.weight_decay,
    )
    slot.optimizer.zero_grad(set_to_none=True)
    return {"grad_norm": float(norm), "learning_rate": command.learning_rate}


@contextmanager
def _added_gradient(slot: AdapterSlot) -> Iterator[None]:
    """Context that starts with a cleared gradient, and on exit adds the slot's previous gradient to the new one.
    After an exception, the slot has its previous gradient.
    """
    before = [parameter.grad for parameter in slot.parameters.values()]
    slot.optimizer.zero_grad(set_to_none=True)
    try:
        yield
    except BaseException:
        for parameter, gradient in zip(slot.parameters.values(), before, strict=True):
            parameter.grad = gradient
        raise
    for parameter, gradient in zip(slot.parameters.values(), before, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)


def _pack(base: BaseModel, batch: ClientBatch, micro_batch_tokens: int) -> list[list[list[int]]]:
    """Return the indexes of the datums in each row of each micro-batch. All datums of a micro-batch have the same
    number of targets per token.
    """
    alike: dict[int, list[int]] = {}
    for index, datum in enumerate(batch.datums):
        alike.setdefault(datum.targets_per_token, []).append(index)
    return [
        [[indexes[i] for i in row] for row in layout.rows]
        for indexes in alike.values()
        for layout in pack_lengths(
            [len(batch.datums[i].tokens) for i in indexes], micro_batch_tokens, base.single_row, base.shares_rows
        )
    ]


@dataclass(frozen=True)
class _ClientMicroBatch:
    """Input of one forward pass. N is the number of tokens, K the number of targets per token."""

    input_ids: torch.Tensor
    """[rows, width] int64"""
    position_ids: torch.Tensor
    """[rows, width] int64. Positions restart at 0 with every datum."""
    predicting: torch.Tensor
    """[N] int64: flat index of each token of the datums."""
    targets: torch.Tensor
    """[N] int64, or [N, K]"""
    inputs: Mapping[str, torch.Tensor]
    """float32 [N] each, or [N, K]"""
    lengths: Sequence[int]

    @classmethod
    def of(cls, batch: ClientBatch, rows: Sequence[Sequence[int]]) -> "_ClientMicroBatch":
        placed = lay_out([[torch.from_numpy(batch.datums[i].tokens.astype(np.int64)) for i in row] for row in rows])
        datums = [batch.datums[index] for row in rows for index in row]
        width = placed.input_ids.shape[1]
        return cls(
            placed.input_ids,
            placed.position_ids,
            torch.cat([torch.arange(len(ids)) + (row * width + start) for row, start, ids in placed.places]),
            torch.from_numpy(np.concatenate([datum.targets.dense(np.int64) for datum in datums])),
            {
                name: torch.from_numpy(np.concatenate([datum.inputs[name].dense(np.float32) for datum in datums]))
                for name in batch.loss.tensors
            },
            [len(datum.tokens) for datum in datums],
        )

    def to(self, device: torch.device) -> "_ClientMicroBatch":
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            predicting=self.predicting.to(device),
            targets=self.targets.to(device),
            inputs={name: values.to(device) for name, values in self.inputs.items()},
        )


def _compute(base: BaseModel, micro_batch: _ClientMicroBatch, batch: ClientBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, a differentiable float64 scalar, and log p of the targets, float32 [N] or [N, K]."""
    states = base.hidden_states(micro_batch.input_ids, micro_batch.position_ids)
    hidden = states.flatten(0, 1)[micro_batch.predicting]
    chunk = chunk_tokens(base, PLAIN)
    if micro_batch.targets.ndim > 1:
        logprobs, weighted = several_logprobs(
            hidden, micro_batch.targets, micro_batch.inputs["weights"], base.head, chunk
        )
        return -weighted.double().sum(), logprobs
    logprobs, _ = token_logprobs(hidden, micro_batch.targets, base.head, PLAIN, chunk)
    terms = batch.loss.terms(LossInputs(logprobs, micro_batch.inputs, micro_batch.lengths, batch.parameters))
    return terms.double().sum(), logprobs.detach()


def several_logprobs(
    hidden: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, head: Head, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p of each token's K targets, [N, K] float32 without a gradient, and their weighted sums [N], which
    are differentiable.

    hidden: [N, H]; targets, weights: [N, K]. Logits exist for `chunk` tokens at a time, and are computed again in the
    backward pass.
    """

    def score(h: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.log_softmax(head(h).float(), -1).gather(-1, t)
        return logprobs.detach(), weigh(logprobs, w).sum(-1)

    parts = [
        checkpoint(score, *part, use_reentrant=False)
        for part in zip(hidden.split(chunk), targets.split(chunk), weights.split(chunk), strict=True)
    ]
    found, sums = zip(*parts, strict=True)
    return torch.cat(found), torch.cat(sums)
