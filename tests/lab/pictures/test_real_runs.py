"""The runs of the pictures: valid, and followed to their end."""

from collections.abc import Iterator
from typing import Any

import pytest
from rlrun.api.run import RLRunSpec

from demo.watch import RunFailed
from tests.pictures.real_runs import CHANGES, OTHER, RUN, look_until_completed, run_object


class FakeKubectl:
    """Answers with one state of a run after the other."""

    def __init__(self, *phases: str | None) -> None:
        self._left: Iterator[str | None] = iter(phases)

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        phase = next(self._left)
        return {"status": {"phase": phase}} if phase else {}

    def __call__(self, *words: str) -> str:
        return "no pods"


@pytest.mark.parametrize("name", CHANGES)
def test_the_runs_are_valid(name: str) -> None:
    spec = RLRunSpec.model_validate(run_object(name)["spec"])
    assert spec.val is not None
    assert [env.id for env in spec.env] == ["rlrun/reverse-text"]


def test_the_runs_differ_in_few_fields() -> None:
    first, second = run_object(RUN)["spec"], run_object(OTHER)["spec"]
    assert {field for field in first if first[field] != second[field]} == {"learningRate", "batchSize"}


def test_a_run_is_looked_at_until_it_is_completed() -> None:
    seen: list[dict[str, Any]] = []
    found = look_until_completed(FakeKubectl(None, "Pending", "Running", "Completed"), RUN, seen.append)  # type: ignore[arg-type]
    assert [run.get("status", {}).get("phase") for run in seen] == [None, "Pending", "Running"]
    assert found["status"]["phase"] == "Completed"


@pytest.mark.parametrize("phases", [("Pending", "Failed"), ("Running", "Stopped")])
def test_a_run_that_ends_otherwise_ends_the_command(phases: tuple[str, ...]) -> None:
    with pytest.raises(RunFailed, match=f"is {phases[-1]}"):
        look_until_completed(FakeKubectl(*phases), RUN, lambda _: None)  # type: ignore[arg-type]


def test_a_run_without_an_end_ends_the_command() -> None:
    with pytest.raises(RunFailed, match="is Running"):
        look_until_completed(FakeKubectl("Running"), RUN, lambda _: None, seconds=-1)  # type: ignore[arg-type]
