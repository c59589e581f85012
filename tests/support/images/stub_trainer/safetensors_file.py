"""Files in the safetensors format: the length of a JSON header, the header, the tensors' bytes. Needs no library."""

import json
import shutil
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

LENGTH = struct.Struct("<Q")
METADATA = "__metadata__"


@dataclass(frozen=True)
class Tensor:
    """Tensor with its bytes in little-endian order."""

    dtype: str
    """Name in the format, such as F32 or U8."""
    shape: tuple[int, ...]
    data: bytes


def floats(shape: tuple[int, ...], values: "array[float]") -> Tensor:
    """Return a float32 tensor. `values` has typecode f."""
    assert len(values) == prod(shape)
    return Tensor("F32", shape, values.tobytes())


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the file's content. Equal tensors give equal bytes."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    position = 0
    for name, tensor in tensors.items():
        end = position + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [position, end]}
        position = end
    return _encoded(header) + b"".join(tensor.data for tensor in tensors.values())


def read_tensor(path: Path, name: str) -> bytes:
    """Return a tensor's bytes. Raises ValueError if the file is damaged or has no such tensor."""
    with path.open("rb") as file:
        header = _read_header(file)
        if name not in header:
            raise ValueError(f"{path.name} has no tensor {name}")
        start, end = header[name]["data_offsets"]
        file.seek(start, 1)
        return file.read(end - start)


def read_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors by name. Raises ValueError if the file is damaged."""
    with path.open("rb") as file:
        return {name: entry["shape"] for name, entry in _read_header(file).items() if name != METADATA}


def copy_with_metadata(source: Path, target: Path, metadata: Mapping[str, str]) -> None:
    """Copy a file with other metadata, which change its digest and not its tensors. Raises ValueError."""
    with source.open("rb") as reading, target.open("wb") as writing:
        header = _read_header(reading) | {METADATA: dict(metadata)}
        writing.write(_encoded(header))
        shutil.copyfileobj(reading, writing)


def _encoded(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, sort_keys=True).encode()
    # Readers expect tensors at a multiple of 8 bytes.
    text += b" " * (-len(text) % LENGTH.size)
    return LENGTH.pack(len(text)) + text


def _read_header(file: BinaryIO) -> dict[str, Any]:
    try:
        (length,) = LENGTH.unpack(file.read(LENGTH.size))
        header: dict[str, Any] = json.loads(file.read(length))
    except (struct.error, OverflowError, ValueError) as error:
        raise ValueError(f"{file.name} is no safetensors file") from error
    return header
