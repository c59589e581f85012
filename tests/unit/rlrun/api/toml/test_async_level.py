"""Files whose max_async_level is below their oversampling_factor start, as at the hosted service."""

from typing import Any

import pytest
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.async_level import fit_async_level, oversampling_for


@pytest.mark.parametrize(
    ("given", "factor", "level", "noted"),
    [
        ({"oversampling_factor": 2.0, "max_async_level": 1}, 2.0, 2, True),
        ({"oversampling_factor": 2.5, "max_async_level": 0}, 2.5, 3, True),
        ({"oversampling_factor": 3}, 3, 3, False),
        ({"max_async_level": 1}, 1.0, 1, False),
        ({"max_async_level": 0}, 1.0, 0, False),
        ({"oversampling_factor": 1, "max_async_level": 0}, 1, 0, False),
        ({"oversampling_factor": 2, "max_async_level": 4}, 2, 4, False),
        ({}, 2.0, 2, False),
    ],
)
def test_level_and_factor_agree(given: dict[str, Any], factor: float, level: int, noted: bool) -> None:
    table = dict(given)
    note = fit_async_level(table)
    spec = RLRunSpec.model_validate({"model": "a/b", "env": [{"id": "a/b"}], **table}, by_name=True, by_alias=False)
    assert (spec.oversampling_factor, spec.max_async_level) == (factor, level)
    assert (note is not None) is noted
    if note:
        assert note.path == "max_async_level"
        assert f"from {given['max_async_level']} to {level}" in note.message


@pytest.mark.parametrize(
    "wrong",
    [
        {"oversampling_factor": 17, "max_async_level": 1},
        {"oversampling_factor": "2"},
        {"max_async_level": True},
        {"max_async_level": -1},
        {"max_async_level": 100},
        {"oversampling_factor": float("nan"), "max_async_level": 1},
    ],
    ids=str,
)
def test_wrong_values_are_left_to_validation(wrong: dict[str, Any]) -> None:
    table = dict(wrong)
    assert fit_async_level(table) is None
    assert str(table) == str(wrong)


@pytest.mark.parametrize(
    ("inflight", "batch", "factor"),
    [
        (256, None, 2.0),
        (96, None, None),
        (96, 64, 1.5),
        (10**400, 128, None),
        ("256", 128, None),
        (True, 1, None),
        (10**309, 1e308, None),
    ],
)
def test_rollouts_in_flight_become_a_factor(inflight: Any, batch: float | None, factor: float | None) -> None:
    table = {} if batch is None else {"batch_size": batch}
    assert oversampling_for(inflight, table) == factor
