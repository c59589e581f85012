"""Publication times read from metric lines."""

import json
from pathlib import Path

import pytest

from bench.publish_latency import lines_of, publications, results_of


def line(step: int, publish: float, seconds: float = 2.0) -> dict[str, float]:
    return {"step": step, "progress/step": float(step), "time/update_weights": publish, "time/step": seconds}


def test_first_publication_is_a_sample_but_not_counted() -> None:
    found = publications("r", [line(1, 40.0), line(2, 0.1), {"step": 2, "eval/x/avg@1": 1.0}, line(3, 0.3)])
    assert [(p.step, p.seconds, p.counted) for p in found] == [(1, 40.0, False), (2, 0.1, True), (3, 0.3, True)]
    latency, share = results_of(found)
    assert latency.ratio == pytest.approx(0.2)
    assert share.ratio == pytest.approx(10.0)
    assert len(latency.samples) == 3


def test_number_is_the_median_over_runs_of_the_median_of_a_run() -> None:
    # Thrown together, the many quick steps of one run would hide the slow ones of the others: their median is 0.1.
    quick = publications("a", [line(step, 0.1) for step in range(1, 20)])
    slow = [p for run in ("b", "c") for p in publications(run, [line(1, 9.0), line(2, 0.4), line(3, 0.6)])]
    latency, share = results_of([*quick, *slow], [0.1, 0.1, 0.5])
    assert list(latency.repetitions) == pytest.approx([0.1, 0.5, 0.5])
    assert latency.ratio == pytest.approx(0.5)
    assert share.ratio == pytest.approx(25.0)
    assert list(latency.cores_busy) == list(share.cores_busy) == [0.1, 0.1, 0.5]


def test_two_replicas_have_rows_of_their_own() -> None:
    latency, share = results_of(publications("a", [line(1, 40.0), line(2, 0.1)], replicas=2))
    assert (latency.name, share.name) == ("latency, 2 replicas", "share of a step, 2 replicas")
    assert latency.what.endswith("replicas: 2")


def test_result_without_measurements_has_a_note() -> None:
    latency, share = results_of(publications("r", [line(1, 40.0)]))
    assert latency.ratio is share.ratio is None
    assert "nothing was measured" in latency.notes[0]


def test_metric_lines_of_a_file_are_merged_by_step(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(json.dumps(one) for one in (line(1, 9.0), line(2, 0.5), line(2, 0.4))) + "\n")
    assert [p.seconds for p in publications("r", lines_of(str(file)))] == [9.0, 0.4]
