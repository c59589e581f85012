"""Proof that an engine applies adapters.

vLLM loads an adapter whose names fit no layer of its model without an error, and answers as the base model. So before
the first adapter of an engine, two copies of it are loaded, one after the other, which differ in their weights only:
the lora_B of the first are 0, those of the second large. If both give the same probabilities of the next token, the
engine applies neither. What prevents the comparison, such as an engine without log-probabilities, is logged and proves
nothing.
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
"""Token ids that every vocabulary has."""
LARGE = 0.5
"""Absolute value of the weights of each lora_B. Those of a trained adapter are far smaller."""
MARGIN = 3
"""Ratio to the rounding errors, measured with one copy twice, up to which a difference is one of them, too."""
LOUD = 0.5
"""Rounding errors in nats that hide everything."""
FEW = 2
"""Number of common likely tokens up to which two distributions are different. Rounding exchanges one of five."""
ENCODINGS = {"F32": struct.pack("<f", LARGE), "F16": struct.pack("<e", LARGE), "BF16": struct.pack("<f", LARGE)[2:]}
"""LARGE by data type. The last byte has the sign."""
PIECE = 1024**2
"""Bytes that are written at a time."""


class AdapterProbe:
    """Checks one engine. `folder` is shared with it under the same path."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder / PROBE_NAME
        self._one_at_a_time = asyncio.Lock()

    async def check(self, adapter: Path) -> None:
        """Check with a copy of the adapter in this folder. Raises ProblemError (AdapterIgnored)."""
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
                "the engine loads adapters and ignores them: with large weights in place of zeros an adapter does not "
                "change the probabilities of the next token, so every policy would be the base model. The names of its "
                "tensors fit no layer of the engine's model: use a vLLM version that serves adapters of this "
                "architecture, and no option that changes the architecture",
            )

    async def _is_ignored(self, adapter: Path) -> bool:
        await self._engine.unload(PROBE_NAME)
        neutral, again = await self._likely_tokens(adapter, large=False, times=2)
        (moved,) = await self._likely_tokens(adapter, large=True, times=1)
        noise = max(map(distance, neutral, again))
        if noise > LOUD:
            raise ValueError(f"the engine's answers to one request differ by {noise:g} nats")
        return max(map(distance, neutral, moved)) <= MARGIN * noise

    async def _likely_tokens(self, adapter: Path, *, large: bool, times: int) -> list[list[dict[str, float]]]:
        """Return the likely tokens after each prompt, requested of a copy of the adapter several times."""
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
    """Return the largest difference between the log-probabilities of likely tokens, in nats."""
    common = one.keys() & other.keys()
    return max(abs(one[token] - other[token]) for token in common) if len(common) > FEW else math.inf


def write_copy(adapter: Path, folder: Path, *, large: bool) -> None:
    """Write a copy of an adapter whose lora_B are 0, or +LARGE and -LARGE by turns of their rows.

    Raises OSError, and ValueError or KeyError if the file is damaged or has another data type.
    """
    start, tensors = read_header(adapter / ADAPTER_WEIGHTS)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(adapter, folder)
    with (folder / ADAPTER_WEIGHTS).open("r+b") as file:
        for name, tensor in tensors.items():
            if not name.endswith(".lora_B.weight"):
                continue
            _, rank = tensor.shape
            plus = ENCODINGS[tensor.dtype]
            minus = plus[:-1] + bytes([plus[-1] | 0x80])
            begin, end = tensor.data_offsets
            file.seek(start + begin)
            _fill(file, plus * rank + minus * rank if large else bytes(PIECE), end - begin)


def _fill(file: BinaryIO, pattern: bytes, size: int) -> None:
    """Write the pattern again and again, by the piece: tensors may be larger than this pod's memory."""
    piece = pattern * max(1, PIECE // max(1, len(pattern)))
    while size > 0:
        size -= file.write(piece[:size])
