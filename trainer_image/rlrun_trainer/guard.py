"""Layers that fail without leaving the others waiting.

With sharded weights every layer, forward and backward, begins and ends with messages between all processes. One that
runs out of memory and stops would leave the rest waiting for it; and FSDP itself, where it is alone, in the middle of a
pass. So a layer that fails is recorded, and the pass goes on with zeros to its end, where all decide together what
becomes of the step. The backward pass can fail softly only where it computes the layer again, as gradient
checkpointing does, so that is done here as well.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Run = Callable[[torch.Tensor], torch.Tensor]


class Guard:
    """What went wrong in a pass over the guarded layers, if anything. Where there are none, errors go their way."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._guarding = False

    def protect(self, layers: Sequence[torch.nn.Module], recompute: bool) -> None:
        """Guards the layers: modules that take hidden states first and return them."""
        self._guarding = True
        for layer in layers:
            layer.forward = functools.partial(self._forward, layer, layer.forward, recompute)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Records a failure between passes as well, where no messages are exchanged."""
        try:
            yield
        except Exception as error:
            if not self._guarding:
                raise
            self.record(error)

    def record(self, error: Exception) -> None:
        """Keeps the first failure, without the tensors that its frames hold."""
        self.failure = self.failure or error.with_traceback(None)

    def settle(self) -> None:
        """Raises what went wrong since the last time."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def run(self, layer: torch.nn.Module, run: Run, hidden: torch.Tensor) -> torch.Tensor:
        """The layer's output; after a failure something of the same shape that every weight has a part in."""
        if self.failure is None:
            try:
                return run(hidden)
            except Exception as error:
                self.record(error)
        nothing = [p.flatten()[:1].sum() * 0 for p in layer.parameters() if p.requires_grad]
        return hidden + sum(nothing, torch.zeros((), device=hidden.device)).to(hidden.dtype)

    def _forward(
        self, layer: torch.nn.Module, forward: Callable[..., torch.Tensor], recompute: bool, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        hidden, *rest = args if args else (kwargs.pop("hidden_states"),)

        def run(states: torch.Tensor) -> torch.Tensor:
            return forward(states, *rest, **kwargs)

        if not (recompute and torch.is_grad_enabled()):
            return self.run(layer, run, hidden)
        # Frozen embeddings need no gradient, but what the layer makes of them does.
        anchor = torch.zeros((), device=hidden.device, requires_grad=True)
        result: torch.Tensor = _Recomputed.apply(self, layer, run, hidden, anchor)
        return result


class _Recomputed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, guard: Guard, layer: torch.nn.Module, run: Run, hidden: torch.Tensor, anchor: torch.Tensor
    ) -> torch.Tensor:
        ctx.guard, ctx.layer, ctx.run, ctx.random = guard, layer, run, _random_state(hidden.device)
        ctx.save_for_backward(hidden)
        return guard.run(layer, run, hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (hidden,) = ctx.saved_tensors
        guard: Guard = ctx.guard
        leaf = hidden.detach().requires_grad_(hidden.requires_grad)
        if guard.failure is None:
            try:
                with _random_numbers(ctx.random, hidden.device), torch.enable_grad():
                    torch.autograd.backward(ctx.run(leaf), gradient)
            except Exception as error:
                guard.record(error)
        if guard.failure is not None:
            for parameter in ctx.layer.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            leaf.grad = torch.zeros_like(leaf) if leaf.requires_grad else None
        return None, None, None, leaf.grad, None


def _random_state(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


@contextmanager
def _random_numbers(states: Sequence[torch.Tensor], device: torch.device) -> Iterator[None]:
    after = _random_state(device)
    _set_random_state(states, device)
    try:
        yield
    finally:
        _set_random_state(after, device)


def _set_random_state(states: Sequence[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
