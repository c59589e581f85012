"""The trainer's process group and its collective operations.

torchrun starts one process per GPU and sets its rank in environment variables. Messages and CPU tensors are sent with
gloo, GPU tensors with NCCL. In a group of one process, no data is sent.

An attacker who reaches the group's ports could impersonate a process, so received bytes are only parsed as JSON,
safetensors or plain tensors. The `*_object` operations of torch would unpickle them.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from rlrun.constants import OUT_OF_MEMORY, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import STATE_LIMITS
from rlrun.service.errors import ProblemError
from torch.distributed.tensor import DTensor, distribute_tensor

from rlrun_trainer.runtime.messages import MessageFormat, Refusal

log = logging.getLogger(__name__)

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Timeout for collective operations. It is longer than a step, and limits how long a hanging process blocks others."""
CPU = torch.device("cpu")
LARGEST_MESSAGE = 2 * STATE_LIMITS.size
"""Maximum size of a message in bytes: twice the maximum size of the orchestrator's state. Columns are not sent as
messages.
"""
PIECE_BYTES = 8 * 1024**2
"""Maximum size in bytes of a piece of columns."""

VOTE_TIMEOUT = timedelta(minutes=5)
"""Timeout for votes after passes. Processes finish a pass at the same time, unless they wait for a failed process."""

SUCCEEDED, FAILED = b"succeeded", b"failed"


@dataclass(frozen=True)
class Passed:
    """Result of a process that succeeded."""


RESULTS: MessageFormat[Passed | Refusal] = MessageFormat(Passed, Refusal)


class StepAborted(Exception):
    """Error for a step that fails during the update, or in a pass while other processes wait in a collective operation.

    The step's changes cannot be undone, so this process must exit.
    """

    problem: Problem | None = None
    """Reason to show to users, if known."""


@dataclass(frozen=True)
class ProcessGroup:
    """Process group as seen by this process."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank of this process on its node, which is also the index of its GPU."""
    votes: Any = None
    """torch process group for votes, or None for the default group."""
    local_size: int = 1
    """Number of processes on each node."""

    @property
    def is_leader(self) -> bool:
        """True for the first process, which serves requests and accesses S3."""
        return self.rank == 0

    def broadcast(self, value: T | None, message_format: MessageFormat[T]) -> T:
        """Return the first process's value on all processes. The other processes pass None as `value`."""
        if self.is_leader:
            assert value is not None
            if self.size > 1:
                self.broadcast_bytes(message_format.encode(value))
            return value
        return message_format.decode(self.broadcast_bytes(b""))

    def all_gather(self, value: T, message_format: MessageFormat[T]) -> list[T]:
        """Return the values of all processes, by rank, on all processes."""
        if self.size == 1:
            return [value]
        return [message_format.decode(message) for message in self.all_gather_bytes(message_format.encode(value))]

    def vote(self, value: T, message_format: MessageFormat[T]) -> list[T]:
        """Return the values of all processes like `all_gather`, after passes in which a process may have failed.

        The other processes may still wait for the failed process within a pass. Therefore raises an error after
        VOTE_TIMEOUT, so that this process exits.
        """
        if self.size == 1:
            return [value]
        messages = self.all_gather_bytes(message_format.encode(value), self.votes)
        return [message_format.decode(message) for message in messages]

    @contextmanager
    def raise_together(self, in_step: bool = True) -> Iterator[None]:
        """Context that raises a ProblemError of one process on all processes. If several processes fail, raises the
        error of the lowest rank. All processes must enter the context.

        `in_step` is False if the block has no collective operations, so that processes may leave it minutes apart;
        VOTE_TIMEOUT then does not apply.
        """
        result: Passed | Refusal = Passed()
        try:
            yield
        except ProblemError as error:
            if self.size == 1:
                raise
            log.error("An operation fails on all processes, because it failed on this one: %s", error)
            result = Refusal.of(error)
        for each in self.vote(result, RESULTS) if in_step else self.all_gather(result, RESULTS):
            if isinstance(each, Refusal):
                raise each.error

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Return the first process's `data`, which must not be empty, on all processes. `data` of the other processes
        is ignored.
        """
        if self.size == 1:
            return data
        length = torch.tensor([len(data)])
        dist.broadcast(length, src=0)
        buffer = message_buffer(int(length))
        if self.is_leader:
            buffer[:] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(buffer, src=0)
        return bytes(buffer.numpy())

    def all_gather_bytes(self, data: bytes, group: Any = None) -> list[bytes]:
        """Return `data` of all processes, by rank, on all processes. `data` must not be empty on any process.

        `group` is a torch process group with a shorter timeout, or None for the default group.
        """
        if self.size == 1:
            return [data]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(data)]), group=group)
        # All buffers of an operation must have the same size.
        longest = max(map(int, lengths))
        buffers = [message_buffer(longest) for _ in range(self.size)]
        own = message_buffer(longest)
        own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.all_gather(buffers, own, group=group)
        return [bytes(buffer[: int(n)].numpy()) for buffer, n in zip(buffers, lengths, strict=True)]

    def broadcast_tensor(self, value: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return the first process's tensor on all processes, on the CPU. The other processes must know the tensor's
        shape and dtype. A group of one process returns `value` itself.
        """
        if self.size == 1:
            assert value is not None
            return value
        tensor = torch.empty(tuple(shape), dtype=dtype) if value is None else value.to(CPU, dtype).contiguous()
        dist.broadcast(tensor, src=0)
        return tensor

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all processes."""
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def all_reduce_max(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the element-wise maximum over all processes."""
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def send_message(self, value: T, message_format: MessageFormat[T], rank: int) -> None:
        """Send a value to one other process, which calls `receive_message`. Only the first process may call it."""
        data = message_format.encode(value)
        dist.send(torch.tensor([len(data)]), rank)
        self.send_columns([data], rank)

    def receive_message(self, message_format: MessageFormat[T]) -> T:
        """Return the value that the first process sends to this one."""
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, 0)
        return message_format.decode(bytes(self.receive_columns(_checked_length(int(length)))))

    def send_columns(self, columns: Iterable[memoryview | bytes], rank: int) -> None:
        """Send bytes in pieces of PIECE_BYTES to one other process, which must know how many bytes to expect."""
        piece = torch.empty(PIECE_BYTES, dtype=torch.uint8)
        room, filled = memoryview(piece.numpy()), 0
        for column in columns:
            rest = memoryview(column)
            while len(rest):
                taken = rest[: PIECE_BYTES - filled]
                room[filled : filled + len(taken)] = taken
                filled, rest = filled + len(taken), rest[len(taken) :]
                if filled == PIECE_BYTES:
                    dist.send(piece, rank)
                    filled = 0
        if filled:
            dist.send(piece[:filled], rank)

    def receive_columns(self, size: int) -> memoryview:
        """Return `size` bytes that the first process sends to this one."""
        buffer = torch.empty(size, dtype=torch.uint8)
        for start in range(0, size, PIECE_BYTES):
            dist.recv(buffer[start : start + PIECE_BYTES], 0)
        return memoryview(buffer.numpy())

    def all_reduce_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace the gradients of replicated parameters by their sums over all processes. FSDP sums the gradients of
        sharded parameters.
        """
        replicated = [p for p in parameters if not isinstance(p, DTensor)]
        if self.size == 1 or not replicated:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in replicated]
        flat = self.all_reduce_sum(torch.cat([gradient.flatten() for gradient in gradients]))
        for parameter, part in zip(replicated, flat.split([p.numel() for p in replicated]), strict=True):
            parameter.grad = part.view_as(parameter)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Context in which a failure on one process raises ProblemError (TrainerOutOfMemory) on all others.
        `StepAborted` is raised immediately, without informing the other processes.
        """
        failure: Exception | None = None
        try:
            yield
        except StepAborted:
            raise
        except Exception as error:
            if self.size == 1:
                raise
            failure = error
        answers = self.all_gather_bytes(FAILED if failure is not None else SUCCEEDED)
        failed = [rank for rank, answer in enumerate(answers) if answer != SUCCEEDED]
        if failure is not None:
            raise failure
        if failed:
            raise ProblemError.of(
                OUT_OF_MEMORY,
                Reason.TRAINER_OUT_OF_MEMORY,
                f"A step failed on processes {failed} of {self.size}, most likely because they ran out of memory (see "
                "their logs). "
                "Lower the RLModel's trainer.microBatchTokens or seqLen, or give the trainer more memory.",
            )

    def _all_reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        if self.size == 1:
            return tensor
        result = tensor.clone()
        dist.all_reduce(result, operation)
        return result


def init_process_group(device: str, environ: Mapping[str, str] = os.environ) -> ProcessGroup:
    """Join the process group if torchrun started several processes. `device` is cpu or cuda."""
    size = int(environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ProcessGroup()
    if not dist.is_initialized():
        dist.init_process_group(_backend(device), timeout=COLLECTIVE_TIMEOUT)
    votes = dist.new_group(backend="gloo", timeout=VOTE_TIMEOUT)
    rank, local_rank, local_size = (
        int(environ.get(name, default))
        for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
    )
    return ProcessGroup(rank, size, local_rank, votes, local_size)


def group_of_one(device: str) -> None:
    """Initialize a process group of one process, which FSDP requires."""
    if not dist.is_initialized():
        dist.init_process_group(_backend(device), store=dist.HashStore(), rank=0, world_size=1)


def message_buffer(length: int) -> torch.Tensor:
    """Return a buffer for a message. Raises RuntimeError if another process announced an invalid length."""
    return torch.zeros(_checked_length(length), dtype=torch.uint8)


def _checked_length(length: int) -> int:
    if not 0 < length <= LARGEST_MESSAGE:
        raise RuntimeError(f"A message between processes is {length} bytes long; 1 to {LARGEST_MESSAGE} are allowed.")
    return length


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor, gathered if it is sharded. All processes must call it."""
    if not isinstance(tensor, DTensor):
        return tensor
    full: torch.Tensor = tensor.full_tensor()
    return full


def copy_into(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a full tensor into a target that may be sharded."""
    value = value.to(target.device, target.dtype)
    if isinstance(target, DTensor):
        value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    with torch.no_grad():
        target.copy_(value)


def _backend(device: str) -> str:
    return "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
