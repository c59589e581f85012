"""Choice of the fastest options of TRL."""

from typing import Any

import pytest

from bench import trl_runs
from bench.reward_curves import Step, Trace
from bench.tasks import WAITING
from bench.trl_runs import Options, TrlFailed


def test_fastest_options_are_chosen_and_failures_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    each = {Options(1): 3.0, Options(2): 2.0}
    asked: list[tuple[Options, bool, float]] = []

    def run(task: Any, _: int, options: Options, *, target: float, **__: Any) -> Trace:
        asked.append((options, task.waits, target))
        if options not in each:
            raise TrlFailed("ended with code 1")
        # A first step that is slow for other reasons does not count.
        return Trace([Step(60.0 + i * each[options], 0.5, 8) for i in range(4)], 10.0)

    monkeypatch.setattr(trl_runs, "run", run)
    best, tried = trl_runs.fastest(WAITING, say=lambda _: None)
    assert best == Options(2)
    assert tried == {"static batches, 1 torch thread": 3.0, "static batches, 2 torch threads": 2.0}
    assert [options for options, _, _ in asked] == [Options(1), Options(2), Options(2, continuous=True)]
    assert not any(waits for _, waits, _ in asked)


def test_default_options_are_used_if_all_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> Trace:
        return Trace([Step(60.0, 0.5, 8)], 10.0)

    monkeypatch.setattr(trl_runs, "run", run)
    assert trl_runs.fastest(WAITING, say=lambda _: None) == (Options(), {})
