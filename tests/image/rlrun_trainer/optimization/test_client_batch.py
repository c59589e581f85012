"""Whatever a client sends is decoded to datums that a pass can use, or refused with a message."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun.protocol.client_command import DatumHeader, ForwardBackward, TensorHeader
from rlrun.service.errors import ProblemError
from rlrun_trainer.optimization import client_batch
from rlrun_trainer.optimization.client_batch import ClientBatch, decode
from rlrun_trainer.optimization.client_loss import LOSSES

from tests.support.client_datums import Datum, Sparse, command, random_datums

VOCABULARY = 40
SEQ_LEN = 64
TOKENS = [1, 2, 3]
RL = {"target_tokens": [2, 3, 4], "logprobs": [-1, -2, -3], "advantages": [0, 1, -1]}


def decoded(loss: str, datums: list[Datum], **more: Any) -> ClientBatch:
    return decode(*command(loss, datums, **more), VOCABULARY, SEQ_LEN)


def test_values_are_those_that_were_sent() -> None:
    first = Datum.of(TOKENS, **RL)
    batch = decoded("ppo", [first, Datum.of([7], target_tokens=[8], logprobs=[-0.5], advantages=[2])])
    assert batch.parameters == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    one, two = batch.datums
    assert (one.tokens.tolist(), two.tokens.tolist()) == (TOKENS, [7])
    assert one.targets.dense(np.int64).tolist() == [2, 3, 4]
    assert one.inputs["advantages"].dense(np.float32).tolist() == [0, 1, -1]
    assert two.inputs["logprobs"].dense(np.float32).tolist() == [-0.5]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_targets_are_of_both_integer_types(dtype: type) -> None:
    sent = Datum.of(TOKENS, target_tokens=np.array([2, 3, 39], dtype), weights=np.array([1, 0, -2], dtype))
    [datum] = decoded("cross_entropy", [sent]).datums
    assert datum.targets.dense(np.int64).tolist() == [2, 3, 39]
    assert datum.inputs["weights"].dense(np.float32).tolist() == [1, 0, -2]


def test_bfloat16_is_widened_exactly() -> None:
    # bfloat16 is the upper half of a float32. Two bytes also misalign the tensors that follow.
    half = (np.array([1.5, -0.25, 3.0], "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    header = TensorHeader(name="weights", dtype="bfloat16", shape=[3], sizes=[6])
    targets = TensorHeader(name="target_tokens", dtype="int64", shape=[3], sizes=[24])
    data = np.array(TOKENS, "<i4").tobytes() + half + np.array([5, 6, 7], "<i8").tobytes()
    sent = Datum(DatumHeader(length=3, tensors=[header, targets]), data)
    [datum] = decoded("cross_entropy", [sent]).datums
    assert datum.inputs["weights"].dense(np.float32).tolist() == [1.5, -0.25, 3.0]
    assert datum.targets.dense(np.int64).tolist() == [5, 6, 7]


def test_sparse_and_dense_matrices_are_the_same() -> None:
    targets = np.array([[0, 3, 0, 9], [0, 0, 0, 0], [1, 2, 3, 39]])
    weights = np.array([[0, 0.5, 0, -2], [0, 0, 0, 0], [0, 0.25, 0, 1]], np.float32)
    dense = Datum.of(TOKENS, target_tokens=targets, weights=weights)
    sparse = Datum.of(TOKENS, target_tokens=Sparse(targets, np.int64), weights=Sparse(weights))
    empty = Datum.of(TOKENS, target_tokens=Sparse(0 * targets, np.int64), weights=Sparse(0 * weights))
    one, two, three = decoded("cross_entropy", [dense, sparse, empty]).datums
    assert one.targets_per_token == two.targets_per_token == 4
    for ours, theirs in ((one, two), (two, one)):
        assert ours.targets.dense(np.int64).tolist() == theirs.targets.dense(np.int64).tolist() == targets.tolist()
        assert ours.inputs["weights"].dense(np.float32).tolist() == weights.tolist()
    assert not three.targets.dense(np.int64).any()


def test_one_target_per_token_may_be_a_matrix() -> None:
    [datum] = decoded(
        "cross_entropy", [Datum.of(TOKENS, target_tokens=[[1], [2], [3]], weights=[[1], [1], [1]])]
    ).datums
    assert datum.targets.dense(np.int64).tolist() == [1, 2, 3]


SFT = {"target_tokens": [2, 3, 4], "weights": [1, 1, 1]}
MATRIX = {"target_tokens": [[2, 3]] * 3, "weights": [[1, 0]] * 3}


@pytest.mark.parametrize(
    ("loss", "tokens", "tensors", "config", "message"),
    [
        ("stable_reinforce", TOKENS, RL, {}, "formula is not public; use loss_fn=importance_sampling"),
        ("custom", TOKENS, RL, {}, "forward_backward_custom"),
        ("dpo", TOKENS, RL, {}, "loss_fn 'dpo' is not available: use one of cross_entropy, importance_sampling, ppo"),
        ("ppo", TOKENS, RL, {"beta": 1}, "has 'beta', which is not a parameter of ppo: use only clip_low"),
        ("importance_sampling", TOKENS, RL, {"beta": 1}, "send no parameters"),
        ("dro", TOKENS, RL, {"beta": -1}, r"loss_fn_config.beta is -1.0. Use a number from 0"),
        ("ppo", TOKENS, RL, {"clip_low_threshold": 1.3}, "clip_low_threshold 1.3 is above clip_high_threshold 1.2"),
        ("ppo", TOKENS, SFT, {}, r"loss_fn_inputs\['weights'\] is not an input of this loss: ppo takes target_tokens"),
        ("gspo", TOKENS, RL, {}, r"data\[1\].loss_fn_inputs\['sequence_ratio_mask'\] is missing: gspo takes"),
        ("gspo", TOKENS, RL | {"sequence_ratio_mask": [0, 0, 0]}, {}, "marks no token"),
        ("ppo", [1, 2, 40], RL, {}, r"data\[1\].model_input has token 40, but the vocabulary has 40"),
        ("ppo", [1, -2, 3], RL, {}, r"model_input has token -2"),
        ("ppo", [1] * 65, RL, {}, r"model_input has 65 tokens. The model's limit is 64"),
        ("ppo", TOKENS, RL | {"target_tokens": [1, 2, 2**40]}, {}, r"\['target_tokens'\] has token 1099511627776"),
        ("ppo", TOKENS, RL | {"target_tokens": np.zeros(3, np.float32)}, {}, "has type float32. Send int64"),
        ("ppo", TOKENS, RL | {"logprobs": [-1, math.nan, -1]}, {}, r"\['logprobs'\] has a value that is not finite"),
        ("ppo", TOKENS, RL | {"advantages": [1, math.inf, 1]}, {}, r"\['advantages'\] has a value that is not finite"),
        ("ppo", [1, 2], RL, {}, r"has shape \[3\]. model_input has 2 tokens, so the shape must be \[2\]"),
        ("ppo", TOKENS, RL | {"target_tokens": [[1, 2]] * 3}, {}, r"has shape \[3, 2\]. .* must be \[3\]"),
        ("cross_entropy", TOKENS, MATRIX | {"weights": [1, 1, 1]}, {}, r"shape \[3\], but target_tokens has \[3, 2\]"),
        ("cross_entropy", TOKENS, SFT | {"weights": [1, 1]}, {}, r"must be \[3\] or \[3, K\]"),
        ("cross_entropy", TOKENS, {n: np.zeros((3, 0), np.int64) for n in SFT}, {}, "has 0 targets per token"),
        ("cross_entropy", TOKENS, {n: np.zeros((3, 41), np.int64) for n in SFT}, {}, "41 targets .* Send 1 to 40"),
    ],
)  # fmt: skip
def test_a_refusal_says_where_and_what_to_change(
    loss: str, tokens: list[int], tensors: dict[str, Any], config: dict[str, float], message: str
) -> None:
    good = random_datums(loss, 1, VOCABULARY)
    with pytest.raises(ProblemError, match=message) as refused:
        decoded(loss, [*good, Datum.of(tokens, **tensors)], config=config)
    assert (refused.value.status, refused.value.problem.reason) == (422, "CommandInvalid")
    assert refused.value.problem.message.endswith(".")


def csr(offsets: list[int], columns: list[int], values: int | None = None, shape: tuple[int, int] = (3, 4)) -> Datum:
    """A datum whose weights have these row offsets and columns."""
    stored = len(columns) if values is None else values
    parts = [np.ones(stored, "<f4"), np.array(offsets, "<i8"), np.array(columns, "<i8")]
    weights = TensorHeader(
        name="weights",
        dtype="float32",
        shape=list(shape),
        sizes=[part.nbytes for part in parts],
    )
    targets = Datum.of(TOKENS, target_tokens=np.zeros(shape, np.int64))
    return Datum(
        DatumHeader(length=3, tensors=[*targets.header.tensors, weights]),
        targets.data + b"".join(part.tobytes() for part in parts),
    )


@pytest.mark.parametrize(
    ("datum", "message"),
    [
        (csr([0, 1, 2], [0, 1]), "24 bytes of row offsets. Send 4 numbers"),
        (csr([0, 1, 2, 3], [0, 1]), "do not ascend from 0 to 2, its number of values"),
        (csr([1, 1, 2, 2], [0, 1]), "offsets that do not ascend"),
        (csr([0, 2, 1, 2], [0, 1]), "offsets that do not ascend"),
        (csr([0, -(2**63), 1, 2], [0, 1]), "offsets that do not ascend"),
        (csr([0, 1, 2, 2], [0, 4]), "a column index outside its shape. Send 0 to 3"),
        (csr([0, 1, 2, 2], [0, -1]), "a column index outside its shape. Send 0 to 3"),
        (csr([0, 2, 2, 2], [1, 0]), "indices do not ascend"),
        (csr([0, 2, 2, 2], [1, 1]), "indices do not ascend"),
        (csr([0, 1, 2, 2], [0, 1], values=3), "different numbers of column indices"),
    ],
)
def test_a_refusal_of_a_sparse_matrix_says_what_is_wrong(datum: Datum, message: str) -> None:
    with pytest.raises(ProblemError, match=rf"data\[0\].loss_fn_inputs\['weights'\] has .*{message}"):
        decoded("cross_entropy", [datum])


def test_targets_are_limited_before_they_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_batch, "MAX_TARGETS", 23)
    assert decoded("cross_entropy", [csr([0, 0, 0, 0], [])])
    with pytest.raises(ProblemError, match=r"data\[1\] have more than 23 targets in total. Send fewer"):
        decoded("cross_entropy", [csr([0, 0, 0, 0], [])] * 2)


def test_missing_and_surplus_bytes_are_refused() -> None:
    header, data = command("ppo", [Datum.of(TOKENS, **RL)])
    for wrong in (data[:-1], memoryview(bytes(data) + b"\0")):
        with pytest.raises(ProblemError, match=f"announces {len(data)} bytes .* but {len(wrong)} were received"):
            decode(header, wrong, VOCABULARY, SEQ_LEN)


SIZES = st.integers(0, 40)
HEADERS = st.builds(
    TensorHeader,
    name=st.sampled_from(["target_tokens", "weights", "logprobs", "advantages", "sequence_ratio_mask", "x\n"]),
    dtype=st.sampled_from(["float32", "int64", "int32", "bfloat16"]),
    shape=st.lists(st.integers(0, 4) | st.integers(0, 2**24), min_size=1, max_size=2),
    sizes=st.lists(SIZES, min_size=1, max_size=3),
)
COMMANDS = st.builds(
    ForwardBackward,
    loss=st.sampled_from([*LOSSES, "stable_reinforce", "x"]),
    loss_config=st.dictionaries(
        st.sampled_from(["clip_low_threshold", "beta", "x"]), st.floats(allow_nan=False, allow_infinity=False)
    ),
    datums=st.lists(
        st.builds(DatumHeader, length=st.integers(1, 4), tensors=st.lists(HEADERS, max_size=4)), min_size=1, max_size=3
    ),
)


@settings(deadline=None, max_examples=200)
@given(header=COMMANDS, fill=st.binary(min_size=1, max_size=16), change=st.integers(-1, 1))
def test_no_header_raises_another_error(header: ForwardBackward, fill: bytes, change: int) -> None:
    size = sum(datum.size for datum in header.datums) + change
    data = memoryview((fill * (size // len(fill) + 1))[: max(0, size)])
    assert refusal(header, data) in (None, "CommandInvalid")


@settings(deadline=None, max_examples=200)
@given(data=st.data(), loss=st.sampled_from(list(LOSSES)), seed=st.integers(0, 50))
def test_no_damage_of_a_good_command_raises_another_error(data: st.DataObject, loss: str, seed: int) -> None:
    datums = random_datums(loss, 2, VOCABULARY, seed)
    if loss == "cross_entropy" and seed % 2:
        datums[0] = csr([0, 1, 3, 4], [2, 0, 3, 1])
    header, sent = command(loss, datums)
    damaged = bytearray(sent)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert refusal(header, memoryview(damaged)) in (None, "CommandInvalid")


def refusal(header: ForwardBackward, data: memoryview) -> str | None:
    """Return the reason for which the command is refused, or None if a pass can use it."""
    try:
        batch = decode(header, data, VOCABULARY, SEQ_LEN)
    except ProblemError as refused:
        return refused.problem.reason
    for datum in batch.datums:
        targets = datum.targets.dense(np.int64)
        assert 0 <= datum.tokens.min() <= datum.tokens.max() < VOCABULARY
        assert 0 <= targets.min() <= targets.max() < VOCABULARY
        assert len(targets) == len(datum.tokens)
        for tensor in datum.inputs.values():
            values = tensor.dense(np.float32)
            assert values.shape == targets.shape
            assert np.isfinite(values).all()
    return None
