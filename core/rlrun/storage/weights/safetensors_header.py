"""Parses safetensors headers (names, types, shapes and offsets of tensors) and checks them against the file.

A file begins with the length of its header (8 bytes, little-endian) and the header as JSON. Offsets count from the end
of the header. Files come from runs, so a header may not match the file.
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, RootModel, model_validator

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits, parse

LENGTH = struct.Struct("<Q")
MAX_TENSORS = 100_000
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Size of an element in bytes by data type. The sizes of other types are not checked."""
METADATA = "__metadata__"

Number = Annotated[int, Field(ge=0, lt=2**53)]


class Tensor(BaseModel):
    """Type, shape and byte range of a tensor in the file."""

    dtype: Text
    shape: list[Number] = Field(max_length=16)
    data_offsets: tuple[Number, Number]


class SafetensorsHeader(RootModel[dict[str, Tensor]]):
    """Header of a safetensors file: type, shape and byte range of each tensor, by name."""

    wire_limits: ClassVar[InputLimits] = InputLimits(size=16 * 1024**2, values=8 * MAX_TENSORS)

    root: dict[Text, Tensor] = Field(max_length=MAX_TENSORS)

    @model_validator(mode="before")
    @classmethod
    def _without_metadata(cls, entries: Any) -> Any:
        if not isinstance(entries, dict):
            return entries
        return {key: entry for key, entry in entries.items() if key != METADATA}


def read_header(path: Path) -> tuple[int, Mapping[str, Tensor]]:
    """Return the offset of the data, and the tensors by name.

    Raises OSError, and ValueError for a header that is too large, damaged or inconsistent with the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(LENGTH.size)
        length = LENGTH.unpack(start)[0] if len(start) == LENGTH.size else size
        if length > size - LENGTH.size:
            raise ValueError(f"{path.name} is not a safetensors file")
        if length > SafetensorsHeader.wire_limits.size:
            limit = SafetensorsHeader.wire_limits.size
            raise ValueError(f"the header of {path.name} is {length} bytes, above the limit of {limit}")
        text = file.read(length)
    tensors = parse(SafetensorsHeader, text, f"The header of {path.name}").root
    left = size - LENGTH.size - length
    for name, tensor in tensors.items():
        _check(tensor, left, f"{path.name}: tensor {name[:200]!r}")
    if sum(tensor.data_offsets[1] - tensor.data_offsets[0] for tensor in tensors.values()) > left:
        raise ValueError(f"{path.name} has tensors that overlap")
    return LENGTH.size + length, tensors


def _check(tensor: Tensor, left: int, what: str) -> None:
    begin, end = tensor.data_offsets
    if not begin <= end <= left:
        raise ValueError(f"{what} is outside the file")
    size = SIZES.get(tensor.dtype)
    if size is not None and math.prod(tensor.shape) * size != end - begin:
        raise ValueError(f"{what} is {end - begin} bytes, which does not match its shape {tensor.shape}")
