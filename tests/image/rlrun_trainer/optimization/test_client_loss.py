"""Losses of clients against their definitions, token by token in float64."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from rlrun_trainer.optimization.client_loss import LOSSES, LossInputs

LENGTHS = (5, 1, 40, 18)


@dataclass(frozen=True)
class Token:
    """Inputs of a token, and the mean log-ratio of its datum."""

    p: float
    q: float
    advantage: float
    weight: float
    mean: float


Definition = Callable[[Token, Mapping[str, float]], tuple[float, float]]
"""Loss of a token, and its derivative by log p."""


def cross_entropy(of: Token, _: Mapping[str, float]) -> tuple[float, float]:
    return -of.weight * of.p, -of.weight


def importance_sampling(of: Token, _: Mapping[str, float]) -> tuple[float, float]:
    ratio = math.exp(of.p - of.q)
    return -ratio * of.advantage, -ratio * of.advantage


def clipped(ratio: float, advantage: float, config: Mapping[str, float]) -> tuple[float, float]:
    """The ratio's derivative by log p is the ratio."""
    low, high = config["clip_low_threshold"], config["clip_high_threshold"]
    if advantage >= 0:
        return -min(ratio, high) * advantage, -ratio * advantage * (ratio < high)
    return -max(ratio, low) * advantage, -ratio * advantage * (ratio > low)


def ppo(of: Token, config: Mapping[str, float]) -> tuple[float, float]:
    return clipped(math.exp(of.p - of.q), of.advantage, config)


def gspo(of: Token, config: Mapping[str, float]) -> tuple[float, float]:
    return clipped(math.exp(of.mean), of.advantage, config)


def cispo(of: Token, config: Mapping[str, float]) -> tuple[float, float]:
    ratio = min(max(math.exp(of.p - of.q), config["clip_low_threshold"]), config["clip_high_threshold"])
    return -ratio * of.p * of.advantage, -ratio * of.advantage


def dro(of: Token, config: Mapping[str, float]) -> tuple[float, float]:
    loss = -(of.p * of.advantage - config["beta"] / 2 * (of.p - of.q) ** 2)
    return loss, -of.advantage + config["beta"] * (of.p - of.q)


DEFINITIONS: dict[str, Definition] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "dro": dro,
    "gspo": gspo,
}
CONFIGS: list[tuple[str, dict[str, float]]] = [
    *((name, {}) for name in DEFINITIONS),
    ("ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 1.05}),
    ("cispo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    ("gspo", {"clip_low_threshold": 0.999, "clip_high_threshold": 1.001}),
    ("dro", {"beta": 3.0}),
]


def inputs(dtype: torch.dtype, parameters: Mapping[str, float]) -> LossInputs:
    torch.manual_seed(3)
    count = sum(LENGTHS)
    logprobs = (-3 * torch.rand(count, dtype=torch.float64)).to(dtype)
    # Mean ratios below, above and between the thresholds.
    shift = torch.tensor([0.5, -0.5, 0.05, -0.3], dtype=torch.float64).repeat_interleave(torch.tensor(LENGTHS))
    tensors = {
        "weights": torch.randn(count, dtype=torch.float64),
        "logprobs": logprobs.double() + shift + torch.randn(count, dtype=torch.float64) / 4,
        "advantages": torch.randn(count, dtype=torch.float64),
        "sequence_ratio_mask": (torch.rand(count, dtype=torch.float64) < 0.6) * 0.5,
    }
    tensors["weights"][::4] = tensors["advantages"][::4] = 0
    tensors["sequence_ratio_mask"][torch.tensor(LENGTHS).cumsum(0) - 1] = 1
    kept = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    return LossInputs(logprobs.requires_grad_(), kept, LENGTHS, parameters)


def tokens(of: LossInputs) -> list[Token]:
    made = []
    columns = [of.logprobs.detach(), *(of.tensors[name] for name in ("logprobs", "advantages", "weights"))]
    parts = [column.double().split(list(LENGTHS)) for column in (*columns, of.tensors["sequence_ratio_mask"])]
    for p, q, advantages, weights, mask in zip(*parts, strict=True):
        mean = float((p - q)[mask != 0].mean())
        made += [Token(float(p[i]), float(q[i]), float(advantages[i]), float(weights[i]), mean) for i in range(len(p))]
    return made


@pytest.mark.parametrize(("name", "config"), CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_value_and_gradient_are_those_of_the_definition(
    name: str, config: dict[str, float], dtype: torch.dtype
) -> None:
    loss = LOSSES[name]
    parameters = {**loss.parameters, **config}
    of = inputs(dtype, parameters)
    terms = loss.terms(of)
    [gradient] = torch.autograd.grad(terms.sum(), of.logprobs)
    expected = [DEFINITIONS[name](token, parameters) for token in tokens(of)]
    within = 1e-12 if dtype == torch.float64 else 1e-5
    assert terms.tolist() == pytest.approx([value for value, _ in expected], rel=within, abs=within)
    assert gradient.tolist() == pytest.approx([slope for _, slope in expected], rel=within, abs=within)
    if "clip_low_threshold" in parameters and name != "cispo":
        assert 0 < sum(slope == 0 for _, slope in expected) - sum(of.advantages == 0) < len(expected)


def test_each_loss_has_a_definition() -> None:
    assert LOSSES.keys() == DEFINITIONS.keys()


def test_defaults_are_the_documented_ones() -> None:
    assert {name: dict(loss.parameters) for name, loss in LOSSES.items() if loss.parameters} == {
        "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        "gspo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
        "dro": {"beta": 0.05},
    }


@pytest.mark.parametrize("name", [name for name in DEFINITIONS if name != "dro"])
def test_tokens_without_weight_or_advantage_take_any_value(name: str) -> None:
    loss = LOSSES[name]
    logprobs = torch.tensor([-math.inf, -1.0], requires_grad=True)
    tensors = {
        "weights": torch.tensor([0.0, 1.0]),
        "logprobs": torch.tensor([-1e9, -1.0]),
        "advantages": torch.tensor([0.0, 2.0]),
        "sequence_ratio_mask": torch.tensor([0.0, 1.0]),
    }
    terms = loss.terms(LossInputs(logprobs, tensors, (2,), loss.parameters))
    [gradient] = torch.autograd.grad(terms.sum(), logprobs)
    assert terms[0] == 0
    assert gradient[0] == 0
    assert terms[1].isfinite()
    assert gradient[1].isfinite()
