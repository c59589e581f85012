import json

from rlrun.storage.metric_files import Line, merge_lines, parse_lines


def trained(step: int, **values: float) -> Line:
    return {"step": step, "time": f"t{step}", "progress/step": float(step), **values}


def test_evaluations_join_the_step_whose_policy_they_measured() -> None:
    lines: list[Line] = [
        trained(1, loss=0.5),
        trained(2, loss=0.4),
        {"step": 1, "time": "later", "eval/x/avg@1": 0.25},
        {"step": 0, "time": "late", "eval/x/avg@1": 0.0},
    ]
    assert merge_lines(lines) == [
        {"step": 0, "time": "late", "eval/x/avg@1": 0.0},
        {"step": 1, "time": "t1", "progress/step": 1.0, "loss": 0.5, "eval/x/avg@1": 0.25},
        trained(2, loss=0.4),
    ]


def test_a_step_that_was_trained_twice_is_there_as_trained_last() -> None:
    lines = [trained(1, loss=0.5, only_then=1.0), trained(2), trained(1, loss=0.3)]
    assert merge_lines(lines)[0] == trained(1, loss=0.3)


def test_lists_survive() -> None:
    line = trained(1) | {"reward/histogram": [0.0, 3.0]}
    assert merge_lines(parse_lines(json.dumps(line) + "\n")) == [line]
