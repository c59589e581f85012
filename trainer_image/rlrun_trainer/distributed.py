"""The processes that train together: who this one is, and the few things they tell each other.

torchrun starts one process per GPU and says in environment variables who is who. Python objects and CPU tensors travel
over gloo, GPU tensors over NCCL. A trainer of one process is a world of its own in which everything here is free.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from rlrun.service.errors import ProblemError
from torch.distributed.tensor import DTensor, distribute_tensor

from rlrun_trainer.problems import OUT_OF_MEMORY

T = TypeVar("T")

PATIENCE = timedelta(minutes=30)
"""Longest wait for another process: more than a step takes, and a bound on a process that hangs."""
CPU = torch.device("cpu")


class Stranded(Exception):
    """This process left a pass in the middle, and the others wait for it there: it has to end."""


@dataclass(frozen=True)
class World:
    """This process among those of its trainer."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among those of this machine; the number of its GPU."""

    @property
    def leads(self) -> bool:
        """Whether this is the process that listens and talks to S3."""
        return self.rank == 0

    def tell(self, value: T) -> T:
        """The leader's value, on all."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=CPU)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank, on all."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value)
        return box

    def tell_tensor(self, value: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The leader's tensor on all, on the CPU; the others know only its shape and dtype."""
        if self.size == 1:
            assert value is not None
            return value
        tensor = torch.empty(tuple(shape), dtype=dtype) if value is None else value.to(CPU, dtype).contiguous()
        dist.broadcast(tensor, src=0)
        return tensor

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def largest(self, tensor: torch.Tensor) -> torch.Tensor:
        """The maximum over all processes, element by element."""
        return self._reduced(tensor, dist.ReduceOp.MAX)

    def share(self, things: Sequence[T]) -> list[T | None]:
        """This process's part of the things: every process gets as many, None where there are too few."""
        rounds = range(0, len(things), self.size)
        return [things[i + self.rank] if i + self.rank < len(things) else None for i in rounds]

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replaces the gradients of replicated parameters by their sums; FSDP sums those of sharded ones itself."""
        replicated = [p for p in parameters if not isinstance(p, DTensor)]
        if self.size == 1 or not replicated:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in replicated]
        flat = self.total(torch.cat([gradient.flatten() for gradient in gradients]))
        for parameter, part in zip(replicated, flat.split([p.numel() for p in replicated]), strict=True):
            parameter.grad = part.view_as(parameter)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """What fails inside on one process is refused by all: nobody goes on alone. Only `Stranded` goes its way."""
        failure: Exception | None = None
        try:
            yield
        except Stranded:
            raise
        except Exception as error:
            if self.size == 1:
                raise
            failure = error
        failed = [rank for rank, bad in enumerate(self.gather(failure is not None)) if bad]
        if failure is not None:
            raise failure
        if failed:
            raise ProblemError.of(
                OUT_OF_MEMORY,
                "TrainerOutOfMemory",
                f"a step failed on processes {failed} of {self.size}, most likely for want of memory (their logs say): "
                "lower the RLModel's trainer.microBatchTokens or seqLen, or give the trainer more memory",
            )

    def _reduced(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        if self.size == 1:
            return tensor
        result = tensor.clone()
        dist.all_reduce(result, operation)
        return result


def join(device: str, environ: Mapping[str, str] = os.environ) -> World:
    """Meets the other processes that torchrun started, if it did. `device` is cpu or cuda."""
    size = int(environ.get("WORLD_SIZE", "1"))
    world = World(int(environ.get("RANK", "0")), size, int(environ.get("LOCAL_RANK", "0"))) if size > 1 else World()
    if size > 1 and not dist.is_initialized():
        dist.init_process_group(_backend(device), timeout=PATIENCE)
    return world


def group_of_one(device: str) -> None:
    """A process group for a world of one, where FSDP wants one."""
    if not dist.is_initialized():
        dist.init_process_group(_backend(device), store=dist.HashStore(), rank=0, world_size=1)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be spread over the processes; every process has to ask."""
    if not isinstance(tensor, DTensor):
        return tensor
    full: torch.Tensor = tensor.full_tensor()
    return full


def assign(target: torch.Tensor, value: torch.Tensor) -> None:
    """Puts a whole tensor into one that may be spread over the processes."""
    value = value.to(target.device, target.dtype)
    if isinstance(target, DTensor):
        value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    with torch.no_grad():
        target.copy_(value)


def _backend(device: str) -> str:
    return "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
