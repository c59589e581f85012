"""What the benchmark of writes sends, and how it counts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from rlrun.api.run_status import RLRunStatus

from bench.scale import write_cost
from bench.scale.testbed.bulk import Call


def test_the_status_is_one_that_the_operator_may_write() -> None:
    found = write_cost.status(7)
    assert RLRunStatus.model_validate(found, by_alias=True, by_name=False).progress is not None
    assert len(found["conditions"]) == len({one["type"] for one in found["conditions"]}) > 10


def test_writes_are_applied_by_turns_and_each_shows_another_step() -> None:
    calls = [call for chain in write_cost.status_writes(1) for call in chain]
    assert len(calls) == write_cost.WRITES
    assert len({call.path for call in calls}) == write_cost.RUNS
    assert len({call.body["status"]["progress"]["step"] for call in calls}) == write_cost.WRITES


def test_definitions_of_a_commit_are_copied(tmp_path: Path) -> None:
    write_cost.definitions("HEAD", tmp_path)
    kinds = {yaml.safe_load(file.read_text())["kind"] for file in tmp_path.glob("*.yaml")}
    assert "CustomResourceDefinition" in kinds


class Counter:
    """Server with a counter of CPU time that grows with time and writes."""

    def __init__(self, name: str, ms: list[float]) -> None:
        self.name, self.ms, self.bulk = name, ms, self

    def cpu_ms(self, chains: Iterator[Sequence[Call]], writes: int) -> float:
        assert len(list(chains)) == writes
        return self.ms.pop(0)

    def send(self, chains: Iterator[Sequence[Call]]) -> None:
        assert all(call.method == "DELETE" for chain in chains for call in chain)


def test_the_number_is_the_middle_one_and_the_ratio_that_of_the_middles() -> None:
    servers: list[Any] = [Counter("old", [20, 9, 8, 30, 9, 9, 25, 9, 7]), Counter("new", [5, 3, 4, 6, 3, 4, 10, 3, 2])]
    found = write_cost.measure(servers, 3)
    assert found["status"] == {
        "old": 25,
        "new": 6,
        "new / old": 0.24,
        "old repetitions": [20, 30, 25],
        "new repetitions": [5, 6, 10],
    }
    assert found["progress"]["new / old"] == 0.333
    assert found["create"]["new / old"] == 0.5
