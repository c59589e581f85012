"""Layers that fail without blocking the other processes.

With sharded weights, every layer starts and ends its forward and backward pass with collective operations. A process
that runs out of memory and stops would leave the others waiting, and FSDP in the middle of a pass. A failure in a layer
is therefore recorded, and the pass continues with zeros to its end, where all processes decide about the step together.
After a failure, the backward pass can continue only if it recomputes the layer, so gradient checkpointing is done here.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Run = Callable[[torch.Tensor], torch.Tensor]


class FailureGuard:
    """Guard that records the first failure of a pass. If no layer is guarded, exceptions propagate."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._guarding = False

    def protect(self, layers: Sequence[torch.nn.Module], recompute: bool) -> None:
        """Guard the layers, which receive hidden states as first argument and return them. If `recompute` is True, the
        backward pass recomputes their activations.
        """
        self._guarding = True
        for layer in layers:
            layer.forward = functools.partial(self._forward, layer, layer.forward, recompute)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Context that records failures outside of layers, where no collective operations take place."""
        try:
            yield
        except Exception as error:
            if not self._guarding:
                raise
            self.record(error)

    def record(self, error: Exception) -> None:
        """Store the first failure without its traceback, whose frames refer to tensors."""
        self.failure = self.failure or error.with_traceback(None)

    def settle(self) -> None:
        """Raise the recorded failure, if any, and clear it."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def run(self, layer: torch.nn.Module, run: Run, hidden: torch.Tensor) -> torch.Tensor:
        """Return the layer's output or, after a failure, a tensor of the same shape that depends on every weight."""
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
        # Frozen embeddings need no gradient, but the layer's output does.
        anchor = torch.zeros((), device=hidden.device, requires_grad=True)
        result: torch.Tensor = _Recomputed.apply(self, layer, run, hidden, anchor)
        return result


class _Recomputed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, guard: FailureGuard, layer: torch.nn.Module, run: Run, hidden: torch.Tensor, anchor: torch.Tensor
    ) -> torch.Tensor:
        ctx.guard, ctx.layer, ctx.run, ctx.random = guard, layer, run, _random_state(hidden.device)
        ctx.save_for_backward(hidden)
        return guard.run(layer, run, hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (hidden,) = ctx.saved_tensors
        guard: FailureGuard = ctx.guard
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
