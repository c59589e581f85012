"""Decodes and validates the datums of a client's command.

The values come from a user's program. Whatever the bytes are, decoding either returns datums with which a pass can run,
or raises ProblemError (CommandInvalid), whose message names the invalid argument, datum or tensor as the SDK does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.client_command import MAX_TARGETS, DatumHeader, ForwardBackward, TensorHeader, TensorType
from rlrun.service.errors import ProblemError

from rlrun_trainer.optimization.client_loss import LARGEST_PARAMETER, LOSSES, REFUSED, ClientLoss

TARGETS = "target_tokens"
_INTEGERS = frozenset({TensorType.int32, TensorType.int64})
_DTYPES = {TensorType.float32: "<f4", TensorType.int64: "<i8", TensorType.int32: "<i4", TensorType.bfloat16: "<u2"}


@dataclass(frozen=True)
class ClientTensor:
    """Tensor of a datum."""

    shape: tuple[int, ...]
    """[T], or [T, K]."""
    values: np.ndarray
    """Stored values in row-major order: float32, or integers."""
    places: np.ndarray | None = None
    """Flat indexes of the stored values, ascending. All other values are 0. None if all values are stored."""

    def dense(self, dtype: type) -> np.ndarray:
        """Return all values [T], or [T, K] for K > 1."""
        shape = self.shape[:1] if self.shape[1:] == (1,) else self.shape
        if self.places is None:
            return self.values.astype(dtype).reshape(shape)
        filled: np.ndarray = np.zeros(math.prod(shape), dtype=dtype)
        filled[self.places] = self.values
        return filled.reshape(shape)


@dataclass(frozen=True)
class ClientDatum:
    """Sequence of tokens with the inputs of its loss. Row i of a tensor is about the prediction made after token i."""

    tokens: np.ndarray
    """[T] int32"""
    targets: ClientTensor
    inputs: Mapping[str, ClientTensor]
    """Tensors that the loss needs in addition to the targets."""

    @property
    def targets_per_token(self) -> int:
        """Number of targets of each token."""
        return math.prod(self.targets.shape[1:])


@dataclass(frozen=True)
class ClientBatch:
    """Content of a command."""

    loss: ClientLoss
    parameters: Mapping[str, float]
    forward_only: bool
    datums: Sequence[ClientDatum]


def decode(command: ForwardBackward, buffers: memoryview, vocab_size: int, seq_len: int) -> ClientBatch:
    """Return the content of the command. Tensors are views of `buffers`, except bfloat16 ones, which are converted.
    Raises ProblemError (CommandInvalid).
    """
    loss = _loss(command.loss)
    parameters = _parameters(command, loss)
    size = sum(datum.size for datum in command.datums)
    if len(buffers) != size:
        raise _invalid(f"The header announces {size} bytes of tokens and tensors, but {len(buffers)} were received")
    datums, place, targets = [], 0, 0
    for index, header in enumerate(command.datums):
        reader = _DatumReader(f"data[{index}]", buffers[place : place + header.size], vocab_size)
        targets += reader.check_shapes(header, command.loss, loss, seq_len)
        if targets > MAX_TARGETS:
            raise _invalid(
                f"data[0] to data[{index}] have more than {MAX_TARGETS} targets in total. Send fewer datums per call, "
                "or fewer targets per token"
            )
        datums.append(reader.read(header))
        place += header.size
    return ClientBatch(loss, parameters, command.forward_only, datums)


def _loss(name: str) -> ClientLoss:
    if name in LOSSES:
        return LOSSES[name]
    why = REFUSED.get(name, f"use one of {', '.join(LOSSES)}")
    raise _invalid(f"loss_fn {name!r} is not available: {why}")


def _parameters(command: ForwardBackward, loss: ClientLoss) -> dict[str, float]:
    for name, value in command.loss_config.items():
        if name not in loss.parameters:
            known = f"use only {', '.join(loss.parameters)}" if loss.parameters else "send no parameters"
            raise _invalid(f"loss_fn_config has {name[:64]!r}, which is not a parameter of {command.loss}: {known}")
        # Comparisons with NaN are false.
        if not 0 <= value <= LARGEST_PARAMETER:
            raise _invalid(f"loss_fn_config.{name} is {value}. Use a number from 0 to {LARGEST_PARAMETER:g}")
    parameters = {**loss.parameters, **command.loss_config}
    low, high = parameters.get("clip_low_threshold", 0), parameters.get("clip_high_threshold", math.inf)
    if low > high:
        raise _invalid(
            f"loss_fn_config.clip_low_threshold {low} is above clip_high_threshold {high}. Both are ratios, such as "
            "0.8 and 1.2"
        )
    return parameters


class _DatumReader:
    """Reader of one datum."""

    def __init__(self, name: str, data: memoryview, vocab_size: int) -> None:
        self._name = name
        self._data = data
        self._vocab_size = vocab_size

    def check_shapes(self, header: DatumHeader, loss_name: str, loss: ClientLoss, seq_len: int) -> int:
        """Validate everything except the values. Returns the number of the datum's targets."""
        if header.length > seq_len:
            raise self._refuse("model_input", f"has {header.length} tokens. The model's limit is {seq_len}; send fewer")
        names = [tensor.name for tensor in header.tensors]
        expected = (TARGETS, *loss.tensors)
        takes = f"{loss_name} takes {', '.join(expected)}"
        for name in names:
            if name not in expected:
                raise self._refuse(name, f"is not an input of this loss: {takes}. Remove it")
            if names.count(name) > 1:
                raise self._refuse(name, "was sent more than once. Send it once")
        for name in expected:
            if name not in names:
                raise self._refuse(name, f"is missing: {takes}. Add it")
        shapes = {tensor.name: tuple(tensor.shape) for tensor in header.tensors}
        for tensor in header.tensors:
            self._check_shape(tensor, header.length, loss)
            self._check_sizes(tensor)
        if loss.several_targets and shapes["weights"] != shapes[TARGETS]:
            raise self._refuse(
                "weights",
                f"has shape {list(shapes['weights'])}, but target_tokens has {list(shapes[TARGETS])}. Use one shape",
            )
        return math.prod(shapes[TARGETS])

    def _check_shape(self, tensor: TensorHeader, length: int, loss: ClientLoss) -> None:
        shape = tensor.shape
        allowed = f"[{length}] or [{length}, K]" if loss.several_targets else f"[{length}]"
        if shape[0] != length or (len(shape) > 1 and not loss.several_targets):
            raise self._refuse(
                tensor.name, f"has shape {shape}. model_input has {length} tokens, so the shape must be {allowed}"
            )
        if len(shape) > 1 and not 1 <= shape[1] <= self._vocab_size:
            raise self._refuse(
                tensor.name, f"has {shape[1]} targets per token. Send 1 to {self._vocab_size}, the vocabulary's size"
            )

    def _check_sizes(self, tensor: TensorHeader) -> None:
        sizes = tensor.sizes
        if len(sizes) == 1:
            if sizes[0] != math.prod(tensor.shape) * tensor.dtype.size:
                shape = f"{tensor.dtype.value} values of shape {tensor.shape}"
                raise self._refuse(tensor.name, f"is {sizes[0]} bytes long, which does not match {shape}")
        elif len(sizes) != 3 or len(tensor.shape) != 2:
            raise self._refuse(tensor.name, "is neither dense nor a sparse CSR matrix. Send dense values")
        elif sizes[1] != 8 * (tensor.shape[0] + 1):
            raise self._refuse(
                tensor.name, f"has {sizes[1]} bytes of row offsets. Send {tensor.shape[0] + 1} numbers of type int64"
            )
        elif sizes[2] % 8 or sizes[0] != sizes[2] // 8 * tensor.dtype.size:
            raise self._refuse(
                tensor.name,
                "has different numbers of column indices (int64) and values. Send one index per value",
            )

    def read(self, header: DatumHeader) -> ClientDatum:
        """Return the datum. Its header must have passed `check_shapes`."""
        tokens = self._take(4 * header.length, "<i4")
        self._check_tokens("model_input", tokens)
        tensors = {tensor.name: self._read_tensor(tensor) for tensor in header.tensors}
        mask = tensors.get("sequence_ratio_mask")
        if mask is not None and not mask.values.any():
            raise self._refuse(
                "sequence_ratio_mask", "marks no token, so the sequence has no ratio. Mark the sampled tokens"
            )
        return ClientDatum(tokens, tensors.pop(TARGETS), tensors)

    def _read_tensor(self, tensor: TensorHeader) -> ClientTensor:
        values = self._take(tensor.sizes[0], _DTYPES[tensor.dtype])
        places = self._read_places(tensor) if len(tensor.sizes) > 1 else None
        if tensor.name == TARGETS:
            if tensor.dtype not in _INTEGERS:
                raise self._refuse(TARGETS, f"has type {tensor.dtype.value}. Send int64 or int32")
            self._check_tokens(TARGETS, values)
        elif tensor.dtype is TensorType.bfloat16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise self._refuse(tensor.name, "has a value that is not finite. For tokens that have no value, send 0")
        return ClientTensor(tuple(tensor.shape), values, places)

    def _read_places(self, tensor: TensorHeader) -> np.ndarray:
        rows, columns = tensor.shape
        offsets, indices = (self._take(size, "<i8") for size in tensor.sizes[1:])
        if offsets[0] != 0 or offsets[-1] != len(indices) or (offsets[1:] < offsets[:-1]).any():
            raise self._refuse(
                tensor.name, f"has row offsets that do not ascend from 0 to {len(indices)}, its number of values"
            )
        if len(indices) and (indices.min() < 0 or indices.max() >= columns):
            raise self._refuse(tensor.name, f"has a column index outside its shape. Send 0 to {columns - 1}")
        places: np.ndarray = np.repeat(np.arange(rows, dtype=np.int64) * columns, np.diff(offsets)) + indices
        if (places[1:] <= places[:-1]).any():
            raise self._refuse(
                tensor.name, "has a row whose column indices do not ascend. Sort them, and send each only once"
            )
        return places

    def _take(self, size: int, dtype: str) -> np.ndarray:
        values = np.frombuffer(self._data[:size], dtype=dtype)
        self._data = self._data[size:]
        return values

    def _check_tokens(self, name: str, values: np.ndarray) -> None:
        if len(values) and (values.min() < 0 or values.max() >= self._vocab_size):
            wrong = values[(values < 0) | (values >= self._vocab_size)][0]
            raise self._refuse(
                name, f"has token {wrong}, but the vocabulary has {self._vocab_size} tokens. Use the model's tokenizer"
            )

    def _refuse(self, name: str, cause: str) -> ProblemError:
        field = name if name == "model_input" else f"loss_fn_inputs[{name!r}]"
        return _invalid(f"{self._name}.{field} {cause}")


def _invalid(message: str) -> ProblemError:
    return ProblemError.of(UNPROCESSABLE, Reason.COMMAND_INVALID, f"{message}.")
