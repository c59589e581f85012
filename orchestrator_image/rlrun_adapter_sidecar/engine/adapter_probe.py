"""Checks that an engine applies adapters.

vLLM silently loads an adapter whose tensor names match no layer of its model, and then behaves like the base model.
Before an engine loads its first adapter, the probe therefore loads two copies of that adapter, one after the other,
which differ only in lora_B: all zeros in the first copy, large values in the second. If both give the same next-token
probabilities, the engine ignores adapters. If the comparison is impossible, for example because the response lacks
log-probabilities, the probe only logs the reason.
"""

import asyncio
import logging
import math
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from rlrun.constants import Reason
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import ADAPTER_WEIGHTS
from rlrun.storage.weights.safetensors_header import read_header

from rlrun_adapter_sidecar.engine.vllm_client import PROBE_NAME, Engine

log = logging.getLogger(__name__)

PROMPTS = ((8, 9, 10, 11, 12, 13, 14, 15), (15, 12, 9, 14, 11, 8, 13, 10), (10, 10, 15, 10, 8, 8, 13, 13))
"""Prompts of token ids that exist in every vocabulary."""
LARGE = 0.5
"""Absolute value of all lora_B weights in the second copy, far larger than in trained adapters."""
MARGIN = 3
"""A difference of at most MARGIN times the rounding error counts as rounding. The error is measured by repeating a
request.
"""
LOUD = 0.5
"""Rounding error in nats above which the comparison is meaningless."""
FEW = 2
"""Two distributions that share at most FEW of their five likely tokens count as different. Rounding errors replace
at most one of these tokens.
"""
ENCODINGS = {"F32": struct.pack("<f", LARGE), "F16": struct.pack("<e", LARGE), "BF16": struct.pack("<f", LARGE)[2:]}
"""LARGE in each data type's encoding. The last byte contains the sign."""
MAX_RANK = 2**16
"""Maximum length of a row of `lora_B` in an adapter that is copied. The length is the rank; for joined experts it is
the rank times the number of experts, such as 512 times 128. A header may declare any length, and a row could exceed
this pod's memory.
"""
PIECE = 1024**2
"""Number of bytes written at a time."""


class AdapterProbe:
    """Checks that an engine applies adapters. `folder` is shared with the engine under the same path."""

    def __init__(self, engine: Engine, folder: Path, one_at_a_time: asyncio.Lock | None = None) -> None:
        """`one_at_a_time` is the lock that all probes of an engine share. None means that the engine has no other
        probe.
        """
        self._engine = engine
        self._folder = folder / PROBE_NAME
        self._one_at_a_time = one_at_a_time or asyncio.Lock()

    async def check(self, adapter: Path) -> None:
        """Check the engine with copies of the adapter in the folder `adapter`.

        Raises ProblemError `AdapterIgnored` (422) if the engine ignores adapters.
        """
        async with self._one_at_a_time:
            try:
                ignored = await self._is_ignored(adapter)
            except ProblemError as error:
                log.warning("could not check that the engine applies adapters: %s", error)
                return
            except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
                log.warning("could not check that the engine applies adapters: %s: %s", type(error).__name__, error)
                return
        if ignored:
            raise ProblemError.of(
                422,
                Reason.ADAPTER_IGNORED,
                "the engine loads adapters but ignores them: an adapter with large weights gives the same next-token "
                "probabilities as one with zeros, so every policy would be the base model. The adapter's tensor "
                "names match no layer of the engine's model; use a vLLM version that serves adapters for this "
                "architecture, and no option that changes the architecture",
            )

    async def _is_ignored(self, adapter: Path) -> bool:
        await self._engine.unload(PROBE_NAME)
        neutral, again = await self._likely_tokens(adapter, large=False, times=2)
        (moved,) = await self._likely_tokens(adapter, large=True, times=1)
        noise = max(map(distance, neutral, again))
        if noise > LOUD:
            raise ValueError(f"the engine's responses to the same request differ by {noise:g} nats")
        return max(map(distance, neutral, moved)) <= MARGIN * noise

    async def _likely_tokens(self, adapter: Path, *, large: bool, times: int) -> list[list[dict[str, float]]]:
        """Load a copy of the adapter, and request the likely tokens after each prompt `times` times."""
        try:
            await asyncio.to_thread(write_copy, adapter, self._folder, large=large)
            await self._engine.load(PROBE_NAME, str(self._folder))
            try:
                return [await self._engine.likely_tokens(PROBE_NAME, PROMPTS) for _ in range(times)]
            finally:
                await self._engine.unload(PROBE_NAME)
        finally:
            await asyncio.to_thread(shutil.rmtree, self._folder, True)


def distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the maximum difference, in nats, between the log-probabilities of the tokens in both mappings. Returns
    infinity if the mappings share at most FEW tokens.
    """
    common = one.keys() & other.keys()
    return max(abs(one[token] - other[token]) for token in common) if len(common) > FEW else math.inf


def write_copy(adapter: Path, folder: Path, *, large: bool) -> None:
    """Write a copy of an adapter to `folder`. If `large` is True, the rows of its `lora_B` matrices alternate between
    +LARGE and -LARGE. Otherwise the matrices are 0.

    Raises OSError, and ValueError or KeyError if the file is damaged, has an unsupported data type or a rank above
    MAX_RANK.
    """
    start, tensors = read_header(adapter / ADAPTER_WEIGHTS)
    matrices = {name: tensor for name, tensor in tensors.items() if name.endswith(".lora_B.weight")}
    for name, tensor in matrices.items():
        _, rank = tensor.shape
        if rank > MAX_RANK:
            raise ValueError(f"{name[:200]} has rank {rank}, above the limit of {MAX_RANK}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(adapter, folder)
    with (folder / ADAPTER_WEIGHTS).open("r+b") as file:
        for tensor in matrices.values():
            _, rank = tensor.shape
            plus = ENCODINGS[tensor.dtype]
            minus = plus[:-1] + bytes([plus[-1] | 0x80])
            begin, end = tensor.data_offsets
            file.seek(start + begin)
            _fill(file, plus * rank + minus * rank if large else bytes(PIECE), end - begin)


def _fill(file: BinaryIO, pattern: bytes, size: int) -> None:
    """Fill `size` bytes with the pattern, in pieces, because tensors may be larger than this pod's memory."""
    piece = pattern * max(1, PIECE // max(1, len(pattern)))
    while size > 0:
        size -= file.write(piece[:size])
