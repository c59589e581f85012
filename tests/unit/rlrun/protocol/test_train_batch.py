"""Batches in columns: what the orchestrator writes is what the trainer reads, and a body that lies is refused early."""

import json
import struct
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.api.base.received import InputInvalid, InputLimits
from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.rollouts import TrainSampling
from rlrun.protocol import train_batch
from rlrun.protocol.train_batch import (
    MAX_BATCH_TOKENS,
    MAX_SAMPLES,
    PREFIX,
    BatchBody,
    BatchHeader,
    Sample,
    SampleLoss,
    TrainBatch,
    samples_digest,
)

from tests.support.train_bodies import body_of, read_body


def sample(tokens: int = 5, prompt: int = 2, **changes: Any) -> Sample:
    mask = [i >= prompt for i in range(tokens)]
    values: dict[str, Any] = {
        "token_ids": list(range(tokens)),
        "loss_mask": mask,
        "logprobs": [-0.5 * m for m in mask],
        "advantage": 0.25,
        "policy_version": 3,
    }
    return Sample(**(values | changes))


def lists(one: Sample) -> tuple[Any, ...]:
    taught = None if one.teacher_logprobs is None else list(one.teacher_logprobs)
    columns = list(one.token_ids), list(map(bool, one.loss_mask)), list(one.logprobs), list(one.turn_starts), taught
    return *columns, one.advantage, one.loss, one.policy_version, one.turn_versions, one.sampling


float32 = st.floats(-50, 0, width=32)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    mask = draw(st.lists(st.booleans(), min_size=1, max_size=40))
    drawn = [i for i, m in enumerate(mask) if m]
    starts = sorted(draw(st.sets(st.sampled_from(drawn)))) if drawn else []
    logprobs = draw(st.lists(float32, min_size=len(mask), max_size=len(mask)))
    return Sample(
        token_ids=draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(mask), max_size=len(mask))),
        loss_mask=mask,
        logprobs=logprobs,
        advantage=draw(st.floats(allow_nan=False, allow_infinity=False)),
        policy_version=draw(st.integers(0, 10**6)),
        turn_starts=starts,
        teacher_logprobs=draw(st.none() | st.just(logprobs)),
        loss=draw(st.sampled_from(SampleLoss)),
        turn_versions=draw(st.none() | st.just([7] * len(starts))),
        sampling=draw(st.none() | st.just(TrainSampling(temperature=1.5))),
    )


@given(st.lists(samples(), max_size=5))
def test_a_batch_is_read_as_it_was_written(written: list[Sample]) -> None:
    read = read_body(body_of(written, "0123"))
    assert read.batch_id == "0123"
    assert [lists(one) for one in read.samples] == [lists(one) for one in written]
    assert len(body_of(written, "b")) == BatchBody(TrainBatch(written, "b")).size


def test_a_token_takes_little_more_than_8_bytes() -> None:
    long = sample(32768, 100, turn_starts=[100])
    assert len(body_of([long] * 4)) / (4 * 32768) < 8.3


def test_pieces_are_small_and_columns_are_not_copied() -> None:
    ids = array("i", range(2**20))
    long = sample(2**20, token_ids=ids, loss_mask=bytearray(2**20), logprobs=array("f", bytes(4 * 2**20)))
    pieces = [*BatchBody(TrainBatch([long], "b")).pieces()]
    assert max(map(len, pieces)) <= train_batch.PIECE_BYTES
    assert any(isinstance(piece, memoryview) and piece.obj is ids for piece in pieces)


def test_the_digest_is_that_of_the_samples_alone() -> None:
    digests = [
        samples_digest([sample()]),
        samples_digest([sample(advantage=0.5)]),
        samples_digest([sample(token_ids=[9, 1, 2, 3, 4])]),
        samples_digest([sample(), sample()]),
    ]
    assert len(set(digests)) == 4
    assert samples_digest([sample()]) == digests[0]
    assert len(digests[0]) == 16


def with_header(change: Callable[[dict[str, Any]], object]) -> bytes:
    body = body_of([sample()])
    magic, version, size = PREFIX.unpack_from(body)
    header = json.loads(body[PREFIX.size : PREFIX.size + size])
    change(header)
    text = json.dumps(header).encode()
    return PREFIX.pack(magic, version, len(text)) + text + body[PREFIX.size + size :]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "announced"),
        (b'{"samples":[] }', "announced"),
        (b'{"samples":[],"batchId":"an orchestrator of an earlier release"}', "does not begin with RLBATCH"),
        (struct.pack("<8sII", b"RLBATCH\n", 2, 2) + b"{}", "version 2"),
        (body_of([sample()])[:-1], "announced"),
        (body_of([sample()]) + b"x", "follow"),
        (struct.pack("<8sII", b"RLBATCH\n", 1, 2**32 - 1), "header"),
        (with_header(lambda header: header["samples"][0].update(length=0)), "length"),
        (with_header(lambda header: header["samples"][0].update(length=6)), "announced|bits"),
        (with_header(lambda header: header["samples"][0].update(length=2**24)), "announced"),
        (with_header(lambda header: header["samples"][0].update(turnVersions=[1, 2])), "turnVersions"),
        (with_header(lambda header: header.update(samples=header["samples"] * 2)), "announced"),
    ],
)
def test_a_body_that_is_no_batch_is_refused(body: bytes, words: str) -> None:
    with pytest.raises((InputInvalid, EOFError), match=words):
        read_body(body)


def test_what_a_header_announces_is_compared_with_the_body_before_memory_is_taken() -> None:
    body = with_header(lambda header: header.update(samples=[{**header["samples"][0], "length": 2**24}] * 8))
    with pytest.raises(InputInvalid, match=f"declares .* bytes, but the body is {len(body)} bytes"):
        read_body(body, len(body))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"MAX_SAMPLES": 2}, "3 sequences; at most 2"),
        ({"MAX_BATCH_TOKENS": 14}, "15 tokens; at most 14"),
        ({"size": 10}, "header .* 10"),
        ({"values": 5}, "header has more than 5 values"),
    ],
)
def test_what_the_reader_refuses_as_too_large_is_never_sent(
    limit: dict[str, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = body_of([sample()] * 3)
    [(name, value)] = limit.items()
    if name in ("size", "values"):
        monkeypatch.setattr(BatchHeader, "wire_limits", InputLimits(**limit))
    else:
        monkeypatch.setattr(train_batch, name, value)
    with pytest.raises(InputInvalid, match=words):
        read_body(body)
    with pytest.raises(InputInvalid, match=words):
        BatchBody(TrainBatch([sample()] * 3))


def test_the_largest_batch_size_fits_into_a_batch_also_if_rollouts_fail() -> None:
    spec = RLRunSpec.model_json_schema()["properties"]
    assert spec["batchSize"]["maximum"] + spec["rolloutsPerExample"]["maximum"] <= MAX_SAMPLES


def test_a_batch_may_have_a_billion_tokens() -> None:
    assert MAX_BATCH_TOKENS >= 10**9
    header = {"batchId": "b", "samples": [{"length": 2**24, "advantage": 0.0, "policyVersion": 0}] * 200}
    text = json.dumps(header).encode()
    with pytest.raises(InputInvalid, match="tokens"):
        read_body(PREFIX.pack(b"RLBATCH\n", 1, len(text)) + text)
