"""Benchmark of stored rollouts: both sides do what their names say."""

import pytest
from rlrun.storage.samples.scan import scan

from bench import machine_load, samples
from bench.report import at_least, at_most
from bench.samples import measure, measure_pairs, one_frame, ratios_of, step_of_rollouts


def test_both_sides_have_the_same_lines() -> None:
    groups = step_of_rollouts(3, 2)
    assert scan(one_frame(groups)).records == [record for group in groups for record in group]


def test_a_step_is_the_same_each_time() -> None:
    assert step_of_rollouts(2, 2) == step_of_rollouts(2, 2)


def test_every_number_has_an_aim_and_its_repetitions() -> None:
    results = measure(step_of_rollouts(3, 2), 3, [0.1])
    assert [result.name for result in results] == ["size", "write", "list", "group"]
    assert all(result.aim is not None and result.cores_busy == [0.1] for result in results)
    assert [len(result.repetitions) for result in results] == [1, 3, 3, 3]
    assert results[0].figures["bytes_of_a_group"] < results[0].figures["bytes_without_an_index"]


def test_the_first_pair_does_not_count_and_the_order_alternates() -> None:
    order: list[str] = []
    assert len(measure_pairs(lambda: order.append("ours"), lambda: order.append("plain"), 2)) == 2
    assert order == ["plain", "ours", "ours", "plain", "plain", "ours"]


def test_a_ratio_is_above_one_if_the_aim_is_exceeded() -> None:
    assert ratios_of([(1.0, 4.0)], "x", at_least(2.0))[0] == [4.0]
    assert ratios_of([(1.0, 4.0)], "x", at_most(2.0))[0] == [0.25]


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(allow_busy: bool) -> None:
        assert not allow_busy
        raise machine_load.MachineBusyError("Not measured")

    monkeypatch.setattr(machine_load, "require_idle", busy)
    monkeypatch.setattr("sys.argv", ["samples"])
    with pytest.raises(machine_load.MachineBusyError):
        samples.main()
