"""Summaries that a tenant's process has written."""

import json
from typing import Any

import pytest
from rlrun.api.base.received import InputLimits
from rlrun.storage.samples.record import SampleSplit
from rlrun.storage.samples.summary import MAX_GROUPS, StepSamples
from rlrun_server.rest.samples.sample_summaries import merge_summaries, parse_part, points_of, split_of, without_summary


def line(**changes: Any) -> bytes:
    return json.dumps({
        "step": 3, "split": "train", "file": "step-000003.jsonl.zst", "size": 10, "counts": {"trained": 2},
        "reward": {"mean": 0.5, "quantiles": [0.0] * 7}, "groups": [["reverse", 7, 0.5]], **changes,
    }).encode() + b"\n"  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": 10**9},
        {"step": 4},
        {"split": "val"},
        {"file": "../other/step-000003.jsonl.zst"},
        {"file": "step-000003.val-reverse.jsonl.zst"},
        {"environment": "reverse"},
        {"split": "val", "file": "step-000003.val-x.jsonl.zst", "environment": "<b>"},
        {"split": "val", "file": "step-000003.val-x.jsonl.zst", "environment": "x" * 200},
        {"counts": {"trained": -1}},
        {"counts": {"trained": 10**400}},
        {"counts": {"unknown": 1}},
        {"size": 10**30},
        {"reward": {"mean": 0.5, "quantiles": [0.0] * 8}},
        {"reward": {"mean": float("nan"), "quantiles": [0.0] * 7}},
        {"groups": [["../x", 7, 0.5]]},
        {"groups": [["reverse", 10**30, 0.5]]},
        {"groups": [["reverse", 7, 0.5]] * (MAX_GROUPS + 1)},
    ],
)
def test_lines_that_no_run_writes_are_left_out(changes: dict[str, Any]) -> None:
    assert parse_part(line(**changes)) == []
    assert len(parse_part(line(**changes) + b"null\n[]\n{\n" + line())) == 1


def test_a_line_has_a_limit_of_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepSamples, "wire_limits", InputLimits(size=len(line())))
    assert len(parse_part(line() + line(omitted=100_000) + line())) == 2


def test_later_lines_and_files_replace_earlier_ones() -> None:
    old, new = parse_part(line(size=1) + line(size=2)), parse_part(line(size=3))
    assert [json.loads(s.text)["sizeBytes"] for s in merge_summaries([*new, *old], {}, is_complete=True).summaries] == [
        3
    ]
    assert [json.loads(s.text)["sizeBytes"] for s in merge_summaries(old, {}, is_complete=True).summaries] == [2]


def test_objects_without_a_summary_are_named_by_their_file() -> None:
    listed = {"step-000003.jsonl.zst": 1, "step-000004.eval-exam.jsonl.zst": 2, "other": 3}
    found = merge_summaries(parse_part(line()), listed, is_complete=True).summaries
    assert [summary.key for summary in found] == [(3, "train", ""), (4, "eval", "exam")]
    assert without_summary("step-123456789.jsonl.zst", 1) is None, "beyond the largest step"


def test_the_split_is_a_part_of_the_name() -> None:
    names = {
        "step-000003.jsonl.zst": SampleSplit.train,
        "step-000003.filtered.jsonl.zst": SampleSplit.filtered,
        "step-000003.val-a.b.jsonl.zst": SampleSplit.val,
        "step-000003.eval-é.jsonl.zst": None,
        "step-000003.val-a/b.jsonl.zst": None,
        "step-3.jsonl.zst": None,
        "steps/part-0.jsonl": None,
    }
    assert {name: split_of(name) for name in names} == names


def test_a_summary_of_as_many_groups_as_it_may_have_is_perhaps_not_all() -> None:
    many = [["reverse", number, 0.5] for number in range(MAX_GROUPS)]
    run = merge_summaries(parse_part(line(groups=many)), {}, is_complete=True)
    points, is_complete = points_of(run, "reverse", 7, None)
    assert (len(points), is_complete) == (1, False)
    assert points_of(run, "reverse", 7, SampleSplit.val) == ([], True)


def test_memory_of_a_summary_is_counted() -> None:
    (few,), (many,) = parse_part(line()), parse_part(line(groups=[["reverse", 7, 0.5]] * 100))
    assert many.size - few.size == 99 * 16
