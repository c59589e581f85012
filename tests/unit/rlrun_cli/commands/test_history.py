"""Metrics, rollouts and downloads from a real S3."""

import json
from pathlib import Path

import pytest
import zstandard
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLRUN
from rlrun.storage.layout import RunLayout
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object


def line(step: int, **values: object) -> str:
    return json.dumps({"step": step, "time": "2026-01-01T00:00:00+00:00", "progress/step": step, **values}) + "\n"


@pytest.fixture
def layout(api: FakeCluster, store: Store, bucket: str, prefix: str) -> RunLayout:
    """A finished run with metrics of three steps (the second one written twice), rollouts of one, and an adapter."""
    layout = RunLayout.of(bucket, prefix, "team", "uid-first")
    api.put(custom_object(RLRUN, "first", spec={}, status={"phase": "Completed"}))
    spec = {"runName": "first", "runUid": "uid-first", "step": 3}
    api.put(custom_object(RLADAPTER, "first-3", spec=spec | {"uri": str(layout.adapter(3))}))
    store.put_bytes(layout.metrics("part-1-00000"), (line(1, **{"reward/mean": 0.1}) + line(2)).encode())
    store.put_bytes(
        layout.metrics("part-2-00000"),
        (line(2, **{"reward/mean": 0.25, "loss/mean": 1.5}) + line(3, **{"reward/mean": 0.5})).encode(),
    )
    rollouts = [
        {"step": 3, "environment": "rev", "example": 7, "rollout": "r1", "reward": 1.0, "advantage": 0.5,
         "completionTokens": 9, "stopCondition": "done", "error": None,
         "completion": [{"role": "assistant", "content": "olleh\n[/b]"}]},
        {"step": 3, "environment": "rev", "example": 7, "rollout": "r2", "reward": 0.0, "advantage": -0.5,
         "completionTokens": 0, "stopCondition": None, "completion": None,
         "error": {"reason": "RolloutFailed", "message": "it broke"}},
    ]  # fmt: skip
    text = "".join(json.dumps(r) + "\n" for r in rollouts)
    store.put_bytes(layout.rollouts(3), zstandard.compress(text.encode(), 3))
    store.upload_artifact({"adapter_model.safetensors": b"x" * 100}, layout.adapter(3), ArtifactKind.adapter, step=3)
    return layout


def test_metrics(on_s3: Rlrun, layout: RunLayout) -> None:
    header, *rows = on_s3("metrics", "first").out.splitlines()
    assert header.split() == ["STEP", "REWARD/MEAN", "LOSS/MEAN"]
    assert [r.split() for r in rows] == [["1", "0.1", "-"], ["2", "0.25", "1.5"], ["3", "0.5", "-"]]
    found = json.loads(on_s3("metrics", "first", "--min-step", "2", "--max-step", "2", "-o", "json").out)
    assert [(entry["step"], entry["loss/mean"]) for entry in found] == [(2, 1.5)]
    (last,) = json.loads(on_s3("metrics", "first", "--last", "1", "-m", "reward/mean", "-o", "json").out)
    assert last == {"step": 3, "time": "2026-01-01T00:00:00+00:00", "reward/mean": 0.5}
    assert "loss/mean\n" in on_s3("metrics", "first", "-o", "name").out
    wrong = on_s3("metrics", "first", "-m", "rewards")
    assert wrong.code == 1
    assert "no metric rewards" in wrong.err


def test_metrics_are_drawn(on_s3: Rlrun, layout: RunLayout, store: Store) -> None:
    charts = on_s3("metrics", "first", "--plot").out.split("\n\n")
    assert [chart.splitlines()[0] for chart in charts] == ["reward/mean", "loss/mean"]
    assert charts[0].splitlines()[1].startswith("0.5 │")
    assert on_s3("metrics", "first", "--plot", "-o", "json").code == 2
    store.put_bytes(layout.metrics("part-3-00000"), line(4, **{"reward/histogram": [1, 2]}).encode())
    refused = on_s3("metrics", "first", "--plot", "-m", "reward/histogram")
    assert refused.code == 2
    assert "several values" in refused.err


def test_metrics_of_a_deleted_run(on_s3: Rlrun, layout: RunLayout, api: FakeCluster) -> None:
    del api.objects["RLRun", "team", "first"]
    assert len(json.loads(on_s3("metrics", "first", "-o", "json").out)) == 3


def test_rollouts(on_s3: Rlrun, layout: RunLayout) -> None:
    answer = on_s3("rollouts", "first")
    _, one, two = answer.out.splitlines()
    assert one.split() == ["rev", "7", "1.000", "0.500", "9", "done", "olleh", "[/b]"]
    assert two.endswith("RolloutFailed: it broke")
    assert "2 of 2 rollouts of step 3" in answer.err
    (second,) = json.loads(on_s3("rollouts", "first", "-s", "3", "--num", "1", "--page", "2", "-o", "json").out)
    assert second["rollout"] == "r2"
    wrong = on_s3("rollouts", "first", "-s", "2")
    assert wrong.code == 1
    assert "1 steps with rollouts, 3 to 3" in wrong.err


def test_a_download_is_complete_or_absent(
    on_s3: Rlrun, layout: RunLayout, store: Store, api: FakeCluster, tmp_path: Path
) -> None:
    answer = on_s3("download", "first-3", tmp_path / "a")
    assert "Adapter of step 3: 1 files, 100 B" in answer.out
    assert (tmp_path / "a" / "adapter_model.safetensors").read_bytes() == b"x" * 100
    assert on_s3("download", "first-3", tmp_path / "a").code == 2, "nothing is overwritten"
    store.put_bytes(layout.adapter(3) / "adapter_model.safetensors", b"y" * 100)
    broken = on_s3("download", str(layout.adapter(3)), tmp_path / "b")
    assert broken.code == 1
    assert "its manifest has" in broken.err
    assert not (tmp_path / "b").exists()
    assert on_s3("download", "first-4", tmp_path / "c").code == 1
    api.put(custom_object(RLCHECKPOINT, "first-3", spec={"uri": str(layout.checkpoint(3))}))
    assert "checkpoints/step-000003" in on_s3("download", "first-3", tmp_path / "d", "--kind", "checkpoint").err
