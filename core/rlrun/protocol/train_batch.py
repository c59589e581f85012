"""Batch of a training step, and its wire format: columns of numbers after a small header.

    prefix    8 bytes "RLBATCH\\n"; then the format version and the size of the header, each a uint32
    header    `BatchHeader` as JSON: id of the batch, and `SampleHeader` of each sample
    samples   the columns of one sample after the other, in the order of the header:
                  token ids, int32
                  log-probabilities of the engine, float32
                  log-probabilities of a teacher, float32, only if `isTaught`
                  mask of the sampled tokens, one bit per token, the first in the lowest bit
                  mask of the first token of each turn, one bit per token

Numbers are little-endian, as on all machines of the images. Bits are followed by zeros up to a multiple of 4 bytes. A
token takes 8.25 bytes, or 12.25 with a teacher's log-probability. Neither side converts a column to Python objects.
"""

import hashlib
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputInvalid, InputLimits, check_limits, limits_of, parse
from rlrun.api.base.schema import Schema
from rlrun.api.run_sections.rollouts import TrainSampling

CONTENT_TYPE = "application/vnd.rlrun.batch"
VERSION = 1
MAGIC = b"RLBATCH\n"
PREFIX = struct.Struct("<8sII")
MAX_TOKENS = 2**24
"""Maximum number of tokens in a sample."""
MAX_SAMPLES = 2**17
"""Maximum number of samples in a batch: twice the maximum of `batchSize`, because a step may have more rollouts than
`batchSize`, and a rollout may have more than one sequence.
"""
MAX_BATCH_TOKENS = 2**31
"""Maximum number of tokens in a batch."""
PIECE_BYTES = 256 * 1024
"""Maximum size of a piece of `BatchBody.pieces` in bytes."""
SMALL_BYTES = 64 * 1024
"""Size in bytes below which parts of a body are joined into one piece."""
DIGEST_CHARACTERS = 16
SOURCE = "The batch"
SAME_VERSION = "Trainer and orchestrator must have the same version."

_ONES = re.compile(rb"[^\0]+")
_TO_DIGITS, _TO_FLAGS = bytes.maketrans(b"\0\1", b"01"), bytes.maketrans(b"01", b"\0\1")

Column = memoryview | bytes


class SampleLoss(StrEnum):
    """Kind of loss for a sample's tokens."""

    policy = "policy"
    """Policy gradient with importance ratio times advantage."""
    cross_entropy = "cross_entropy"
    """Maximum likelihood, as in supervised fine-tuning. Log-probabilities and advantages are ignored."""


@dataclass
class Sample:
    """One training sequence, token by token as in the engine. `token_ids`, `loss_mask`, `logprobs` and
    `teacher_logprobs` have the same length. In a received batch they are arrays, or views of the received bytes.
    """

    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    """1 or True for tokens that the policy sampled, 0 or False for prompt and environment tokens."""
    logprobs: Sequence[float]
    """Log-probability of each sampled token in the engine's sampling distribution. 0.0 where the mask is 0."""
    advantage: float
    """Advantage of the sequence, computed from the rewards of its group as `algorithm.advantage` specifies."""
    policy_version: int
    """Version of the oldest policy that sampled tokens of the sequence."""
    turn_starts: Sequence[int] = ()
    """Positions of the first sampled token of each turn, ascending. The engine counts `sampling.minTokens` from these
    positions. If empty, each series of sampled tokens is one turn.
    """
    teacher_logprobs: Sequence[float] | None = None
    """Log-probability of each token in the unmodified distribution of a teacher, in place of `advantage`: the trainer
    compares it with the policy's log-probability. 0.0 where the mask is 0.
    """
    loss: SampleLoss = SampleLoss.policy
    turn_versions: Sequence[int] | None = None
    """Policy version of each turn in `turn_starts`, if several policies sampled the tokens."""
    sampling: TrainSampling | None = None
    """Sampling parameters of the sequence that override those of the session."""

    @property
    def trainable(self) -> int:
        """Number of tokens that the policy sampled."""
        mask = self.loss_mask
        return mask.count(1) if isinstance(mask, bytearray) else sum(mask)


@dataclass
class TrainBatch:
    """Batch of one optimizer step."""

    samples: list[Sample]
    batch_id: str = ""
    """Id of the batch, chosen by the orchestrator and returned in the result. After a restart it identifies the batch
    that the step was trained on, which may differ from the batch in the current request.
    """


class SampleHeader(Schema):
    """Fields of a sample that are not columns."""

    length: int = Field(ge=1, le=MAX_TOKENS)
    """Number of tokens."""
    advantage: float
    loss: SampleLoss = SampleLoss.policy
    policy_version: int
    turn_versions: list[int] | None = Field(default=None, max_length=MAX_TOKENS)
    sampling: TrainSampling | None = None
    is_taught: bool = False
    """True if the sample has log-probabilities of a teacher."""

    @property
    def size(self) -> int:
        """Size of the sample's columns in bytes."""
        return 4 * self.length * (3 if self.is_taught else 2) + 2 * _bits_size(self.length)

    @classmethod
    def of(cls, sample: Sample) -> "SampleHeader":
        """Return the header of a sample."""
        return cls(
            length=len(sample.token_ids),
            advantage=sample.advantage,
            loss=sample.loss,
            policy_version=sample.policy_version,
            turn_versions=None if sample.turn_versions is None else list(sample.turn_versions),
            sampling=sample.sampling,
            is_taught=sample.teacher_logprobs is not None,
        )


class BatchHeader(Schema):
    """Header of a batch."""

    wire_limits = InputLimits(size=128 * 1024**2, values=2**23)

    batch_id: Text = ""
    samples: list[SampleHeader] = Field(max_length=MAX_SAMPLES)


def _check_size(samples: Sequence[SampleHeader]) -> None:
    """Raise InputInvalid if there are more samples or tokens than a batch may have. Sender and receiver call this."""
    if len(samples) > MAX_SAMPLES:
        raise InputInvalid(SOURCE, f"has {len(samples)} sequences; at most {MAX_SAMPLES} are allowed.")
    tokens = sum(sample.length for sample in samples)
    if tokens > MAX_BATCH_TOKENS:
        raise InputInvalid(SOURCE, f"has {tokens} tokens; at most {MAX_BATCH_TOKENS} are allowed.")


def samples_digest(samples: Sequence[Sample]) -> str:
    """Return a digest of the samples, 16 hexadecimal digits. Releases the GIL while it hashes long columns."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(_json(SampleHeader.of(sample)))
        for column in (*_number_columns(sample), _flag_bytes(sample.loss_mask), repr([*sample.turn_starts]).encode()):
            digest.update(column)
    return digest.hexdigest()[:DIGEST_CHARACTERS]


class BatchBody:
    """Encoded batch, as it is sent. Can be sent several times."""

    def __init__(self, batch: TrainBatch) -> None:
        """Encode the header. Blocks for a while if there are many samples. Raises InputInvalid for a batch that
        `BatchReader` would refuse as too large.
        """
        headers = [SampleHeader.of(sample) for sample in batch.samples]
        _check_size(headers)
        text = _json(BatchHeader(batch_id=batch.batch_id, samples=headers))
        check_limits(text, limits_of(BatchHeader), f"{SOURCE}'s header")
        self._samples = batch.samples
        self._head = PREFIX.pack(MAGIC, VERSION, len(text)) + text
        self.size = len(self._head) + sum(header.size for header in headers)
        """Size in bytes."""

    def pieces(self) -> Iterator[Column]:
        """Yield the body in pieces of at most PIECE_BYTES. Long columns are not copied."""
        return _pieces_of(self._columns())

    def _columns(self) -> Iterator[Column]:
        yield self._head
        for sample in self._samples:
            yield from sample_columns(sample)


def _pieces_of(columns: Iterator[Column]) -> Iterator[Column]:
    """Yield the bytes of the columns in pieces of at most PIECE_BYTES."""
    small: list[Column] = []
    size = 0
    for column in columns:
        if len(column) < SMALL_BYTES:
            small.append(column)
            size += len(column)
            if size >= SMALL_BYTES:
                yield b"".join(small)
                small, size = [], 0
            continue
        if small:
            yield b"".join(small)
            small, size = [], 0
        view = memoryview(column)
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
    if small:
        yield b"".join(small)


def sample_columns(sample: Sample) -> Iterator[Column]:
    """Yield the columns of a sample as bytes. Arrays are not copied. Raises ValueError for columns that differ in
    length.
    """
    yield from _number_columns(sample)
    yield _bits(_flag_bytes(sample.loss_mask))
    turns = bytearray(_bits_size(len(sample.token_ids)))
    for start in sample.turn_starts:
        turns[start >> 3] |= 1 << (start & 7)
    yield bytes(turns)


def _number_columns(sample: Sample) -> list[memoryview]:
    length = len(sample.token_ids)
    columns = [_numbers("i", sample.token_ids), _numbers("f", sample.logprobs)]
    if sample.teacher_logprobs is not None:
        columns.append(_numbers("f", sample.teacher_logprobs))
    if any(len(column) != 4 * length for column in columns) or len(sample.loss_mask) != length:
        raise ValueError(f"the columns of a sample of {length} tokens differ in length")
    return columns


class BatchReader:
    """Incremental parser of a batch. The caller passes `wanted` bytes to `feed` until the batch is complete.

        reader = BatchReader(content_length)
        while reader.wanted:
            reader.feed(read_exactly(reader.wanted))
        batch = reader.batch

    The sizes in a header are checked against the size of the body and the limits before the reader requests the data.
    """

    def __init__(self, body_size: int | None = None) -> None:
        """`body_size` is the size of the complete body in bytes, or None if it is unknown."""
        self.wanted = PREFIX.size
        """Number of bytes that `feed` expects next. 0 once the batch is complete."""
        self.batch = TrainBatch([])
        self._body_size = body_size
        self._headers: list[SampleHeader] | None = None
        self._started = False

    def feed(self, data: bytes) -> None:
        """Parse the next `wanted` bytes. Raises InputInvalid."""
        if not self._started:
            self._started = True
            self._read_prefix(data)
        elif self._headers is None:
            self._read_header(data)
        else:
            place = len(self.batch.samples)
            self.batch.samples.append(read_sample(self._headers[place], data, f"samples[{place}] of the batch"))
            self._want_sample()

    def _read_prefix(self, data: bytes) -> None:
        magic, version, size = PREFIX.unpack(data)
        if magic != MAGIC:
            raise InputInvalid(SOURCE, f"does not begin with RLBATCH. {SAME_VERSION}")
        if version != VERSION:
            raise InputInvalid(SOURCE, f"has format version {version} instead of {VERSION}. {SAME_VERSION}")
        limit = limits_of(BatchHeader).size
        if not 0 < size <= limit:
            raise InputInvalid(SOURCE, f"declares a header of {size} bytes; 1 to {limit} are allowed.")
        self.wanted = size

    def _read_header(self, data: bytes) -> None:
        header = parse(BatchHeader, data, f"{SOURCE}'s header")
        _check_size(header.samples)
        size = PREFIX.size + len(data) + sum(sample.size for sample in header.samples)
        if self._body_size is not None and self._body_size != size:
            raise InputInvalid(SOURCE, f"declares {size} bytes, but the body is {self._body_size} bytes.")
        self.batch.batch_id, self._headers = header.batch_id, header.samples
        self._want_sample()

    def _want_sample(self) -> None:
        assert self._headers is not None
        place = len(self.batch.samples)
        self.wanted = self._headers[place].size if place < len(self._headers) else 0


def read_sample(header: SampleHeader, data: bytes | memoryview, source: str = SOURCE) -> Sample:
    """Return a sample from columns of `header.size` bytes. Number columns are views of `data`. Raises InputInvalid."""
    length, view = header.length, memoryview(data)
    starts = range(0, 4 * length * (3 if header.is_taught else 2), 4 * length)
    numbers = [view[start : start + 4 * length] for start in starts]
    bits = _bits_size(length)
    mask, turn_starts = _flags(view[-2 * bits : -bits], length, source), _places(view[-bits:])
    if turn_starts and turn_starts[-1] >= length:
        raise InputInvalid(source, f"has bits beyond its {length} tokens.")
    if header.turn_versions is not None and len(header.turn_versions) != len(turn_starts):
        raise InputInvalid(source, f"has {len(header.turn_versions)} turnVersions for {len(turn_starts)} turns.")
    return Sample(
        token_ids=numbers[0].cast("i"),
        loss_mask=mask,
        logprobs=numbers[1].cast("f"),
        advantage=header.advantage,
        policy_version=header.policy_version,
        turn_starts=turn_starts,
        teacher_logprobs=numbers[2].cast("f") if header.is_taught else None,
        loss=header.loss,
        turn_versions=header.turn_versions,
        sampling=header.sampling,
    )


def _json(header: Schema) -> bytes:
    return header.model_dump_json(by_alias=True, exclude_defaults=True).encode()


def _numbers(kind: str, values: Sequence[float]) -> memoryview:
    column = values if isinstance(values, array | memoryview) else array(kind, values)
    return memoryview(column).cast("B")


def _bits_size(length: int) -> int:
    return (length + 31) // 32 * 4


def _bits(flags: bytes | bytearray) -> bytes:
    """Pack bytes of 0 and 1 into bits, the first in the lowest bit."""
    # Conversion of binary digits takes linear time.
    return int(flags.translate(_TO_DIGITS)[::-1], 2).to_bytes(_bits_size(len(flags)), "little")


def _flags(bits: memoryview, length: int, source: str) -> bytearray:
    """Unpack bits to `length` bytes of 0 and 1. Raises InputInvalid."""
    digits = format(int.from_bytes(bits, "little"), f"0{length}b")
    if len(digits) > length:
        raise InputInvalid(source, f"has bits beyond its {length} tokens.")
    return bytearray(digits.encode().translate(_TO_FLAGS)[::-1])


def _places(bits: memoryview) -> list[int]:
    """Return the positions of the bits that are 1."""
    found = []
    for match in _ONES.finditer(bits):
        for place, byte in enumerate(match.group(), match.start()):
            found += [8 * place + bit for bit in range(8) if byte >> bit & 1]
    return found


def _flag_bytes(mask: Sequence[int]) -> bytes | bytearray:
    return mask if isinstance(mask, bytearray) else bytes(map(bool, mask))
