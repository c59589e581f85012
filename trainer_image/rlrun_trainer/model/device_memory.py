"""Handling of failed allocations, on the device or the CPU."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from rlrun.constants import OUT_OF_MEMORY, Reason
from rlrun.service.errors import ProblemError


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if the error reports a failed allocation."""
    # torch reports a failed allocation on the CPU as a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def release_memory(error: BaseException | None) -> None:
    """Free the memory that the failed call has allocated, because another run may compute next."""
    if error is not None:
        # Frames in the traceback hold the call's tensors.
        traceback.clear_frames(error.__traceback__)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def out_of_memory(message: str) -> ProblemError:
    """Return the error for work that does not fit into memory (`TrainerOutOfMemory`, 507)."""
    return ProblemError.of(OUT_OF_MEMORY, Reason.TRAINER_OUT_OF_MEMORY, message)


@contextmanager
def refuses_without_memory(message: str) -> Iterator[None]:
    """Context in which a failed allocation raises `out_of_memory` with this message. The context must not change any
    state before the allocation.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        release_memory(error)
        raise out_of_memory(message) from error
