"""Metrics, rollouts and downloads from a real S3."""

import hashlib
import json
from pathlib import Path

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLRUN
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.samples.object_file import encode_samples
from rlrun.storage.samples.record import SampleSplit, SampleStatus
from rlrun.storage.store import Store

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.support.sample_records import record
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
    group = [
        record(
            "g-1",
            "r1",
            environment="rev",
            reward=1.0,
            advantage=0.5,
            rewards={},
            completion=[{"role": "assistant", "content": "olleh\n[/b]"}],
        ),
        record(
            "g-1",
            "r2",
            environment="rev",
            reward=0.0,
            advantage=-0.5,
            rewards={},
            status=SampleStatus.errored,
            cause="RolloutFailed",
            stop_condition=None,
            completion=[],
            error={"reason": "RolloutFailed", "message": "it broke"},
        ),
    ]
    store.put_bytes(layout.rollouts(3), encode_samples(3, SampleSplit.train, [group]).data)
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
    (last,) = json.loads(on_s3("metrics", "first", "--last", "1", "-m", "train/reward", "-o", "json").out)
    assert last == {"step": 3, "time": "2026-01-01T00:00:00+00:00", "train/reward": 0.5}
    header, *rows = on_s3("metrics", "first", "-m", "train/reward", "-m", "loss/mean").out.splitlines()
    assert header.split() == ["STEP", "TRAIN/REWARD", "LOSS/MEAN"]
    assert rows[1].split() == ["2", "0.25", "1.5"]
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


def test_metrics_are_drawn_into_a_file(on_s3: Rlrun, layout: RunLayout, tmp_path: Path) -> None:
    file = tmp_path / "curve.svg"
    answer = on_s3("metrics", "first", "-m", "train/reward", "--plot", file)
    assert (answer.code, answer.out) == (0, f"{file}\n")
    assert "<svg" in file.read_text()
    refused = on_s3("metrics", "first", "--plot", tmp_path / "curve.pdf")
    assert refused.code == 2
    assert "neither a .png nor a .svg" in refused.err


def test_metrics_of_a_deleted_run(on_s3: Rlrun, layout: RunLayout, api: FakeCluster) -> None:
    del api.objects["RLRun", "team", "first"]
    assert len(json.loads(on_s3("metrics", "first", "-o", "json").out)) == 3


def test_rollouts(on_s3: Rlrun, layout: RunLayout) -> None:
    answer = on_s3("rollouts", "first")
    _, one, two = answer.out.splitlines()
    assert one.split() == ["g-1", "rev", "7", "trained", "1.000", "0.500", "9", "done", "olleh", "[/b]"]
    assert "errored (RolloutFailed)" in two
    assert two.endswith("RolloutFailed: it broke")
    assert "2 of 2 rollouts of step 3" in answer.err
    (second,) = json.loads(on_s3("rollouts", "first", "-s", "3", "--num", "1", "--page", "2", "-o", "json").out)
    assert (second["v"], second["rollout"], second["status"]) == (2, "r2", "errored")
    assert on_s3("rollouts", "first", "-o", "name").out == "r1\nr2\n"
    wrong = on_s3("rollouts", "first", "-s", "2")
    assert wrong.code == 1
    assert "steps with rollouts: 1, from 3 to 3" in wrong.err


@pytest.fixture
def stored(layout: RunLayout, store: Store) -> RunLayout:
    """The run with rollouts of step 4: two groups of two, a filtered one, and evaluations of two environments."""
    groups = [
        [
            record(
                f"{'ab'[g]}-{g}00000000000",
                f"{'ab'[g]}{r}",
                step=4,
                reward=g / 2 + r / 4,
                environment=("rev", "sort")[g],
                completion=[{"role": "assistant", "content": f"answer {g}{r} \x1b[31mred"}],
            )
            for r in range(2)
        ]
        for g in range(2)
    ]
    filtered = [[record("c-2", "c0", step=4, split=SampleSplit.filtered, status=SampleStatus.filtered, cause="low")]]
    for use, split, written in (
        ("", SampleSplit.train, groups),
        ("filtered", SampleSplit.filtered, filtered),
        ("eval-rev", SampleSplit.eval, [[record("d-3", "d0", step=4, split=SampleSplit.eval)]]),
        ("eval-sort", SampleSplit.eval, [[record("e-4", "e0", step=4, split=SampleSplit.eval)]]),
    ):
        store.put_bytes(layout.rollouts(4, use), encode_samples(4, split, written).data)
    return layout


def rollouts_of(on_s3: Rlrun, *options: object) -> list[str]:
    """Ids of the rollouts that the command shows."""
    answer = on_s3("rollouts", "first", *options, "-o", "name")
    assert answer.code == 0, answer.err
    return answer.out.split()


def test_rollouts_have_a_column_per_reward_function(on_s3: Rlrun, stored: RunLayout) -> None:
    answer = on_s3("rollouts", "first")
    header, first, *_ = answer.out.splitlines()
    assert header.split()[3:8] == ["STATUS", "REWARD", "ADVANTAGE", "OVERLAP", "FORMAT"]
    assert first.split()[:8] == ["a-00000000", "rev", "7", "trained", "0.000", "0.250", "0.500", "1.000"]
    assert "answer 00" in first
    assert "\x1b" not in answer.out, "a terminal would obey what a model said"
    assert "4 of 4 rollouts of step 4" in answer.err


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), ["a0", "a1", "b0", "b1"]),
        (("--step", "3"), ["r1", "r2"]),
        (("--step", "3", "--status", "errored"), ["r2"]),
        (("--env", "sort"), ["b0", "b1"]),
        (("--min-reward", "0.25"), ["a1", "b0", "b1"]),
        (("--min-reward", "0.25", "--max-reward", "0.5"), ["a1", "b0"]),
        (("--group", "b"), ["b0", "b1"]),
        (("--split", "filtered"), ["c0"]),
        (("--split", "filtered", "--status", "trained"), []),
        (("--split", "eval"), ["d0", "e0"]),
        (("--split", "eval", "-s", "4", "--num", "1", "--page", "2"), ["e0"]),
    ],
)
def test_rollouts_are_filtered(on_s3: Rlrun, stored: RunLayout, options: tuple[str, ...], found: list[str]) -> None:
    assert rollouts_of(on_s3, *options) == found


def test_the_rollouts_of_a_group_are_shown_with_their_texts(on_s3: Rlrun, stored: RunLayout) -> None:
    answer = on_s3("rollouts", "first", "--group", "b-1")
    assert answer.out.count("user: reverse: hello") == 1, "siblings have one prompt"
    assert "expected: olleh" in answer.out
    heading = "Rollout b1: reward 0.750 = overlap 0.5 x 0.8 + format 1 x 0.1, advantage 0.250, trained, 9 tokens, done"
    assert heading in answer.out
    assert "assistant: answer 11 \ufffd[31mred" in answer.out
    assert "\x1b" not in answer.out


def test_two_rollouts_with_one_id_are_both_shown(on_s3: Rlrun, layout: RunLayout, store: Store) -> None:
    twice = [record("g", "r0", reward=reward) for reward in (0.0, 1.0)]
    store.put_bytes(layout.rollouts(4), encode_samples(4, SampleSplit.train, [twice]).data)
    found = json.loads(on_s3("rollouts", "first", "-o", "json").out)
    assert [(r["rollout"], r["reward"]) for r in found] == [("r0", 0.0), ("r0", 1.0)]


def test_a_group_must_be_named_clearly(on_s3: Rlrun, stored: RunLayout) -> None:
    assert "no group of this step begins with 'x'" in on_s3("rollouts", "first", "--group", "x").err
    assert "2 group ids begin with ''" in on_s3("rollouts", "first", "--group", "").err


def test_a_split_without_rollouts_is_named(on_s3: Rlrun, stored: RunLayout) -> None:
    answer = on_s3("rollouts", "first", "--split", "val")
    assert answer.code == 1
    assert "has no rollouts of the split val yet" in answer.err
    assert (
        "steps with rollouts of the split eval: 1, from 4 to 4"
        in on_s3("rollouts", "first", "--split", "eval", "-s", 2).err
    )


def test_a_damaged_group_is_named_and_the_others_are_shown(on_s3: Rlrun, stored: RunLayout, store: Store) -> None:
    data = bytearray(store.get_bytes(stored.rollouts(4)))
    data[8:40] = bytes(32)
    store.put_bytes(stored.rollouts(4), bytes(data))
    answer = on_s3("rollouts", "first", "-o", "json")
    assert [r["rollout"] for r in json.loads(answer.out)] == ["b0", "b1"]
    assert answer.code == 1
    assert "group a-000000000000 cannot be read" in answer.err
    assert rollouts_of(on_s3) == ["a0", "a1", "b0", "b1"], "the list needs no texts"


def test_a_list_takes_one_request(
    on_s3: Rlrun, stored: RunLayout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int | None, int]] = []
    get_range = Store.get_range

    def watched(self: Store, uri: S3Uri, start: int | None, length: int) -> bytes:
        asked.append((start, length))
        return get_range(self, uri, start, length)

    def refused(self: Store, uri: S3Uri) -> list[tuple[str, int]]:
        raise AssertionError("the list of all steps is not needed")

    monkeypatch.setattr(Store, "get_range", watched)
    monkeypatch.setattr(Store, "list_files", refused)
    on_s3("rollouts", "first", "-s", "4")
    assert [start for start, _ in asked] == [None]
    on_s3("rollouts", "first", "-s", "4", "--group", "b")
    assert len(asked) == 3


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
    assert "its manifest records" in broken.err
    assert not (tmp_path / "b").exists()
    assert on_s3("download", "first-4", tmp_path / "c").code == 1
    api.put(custom_object(RLCHECKPOINT, "first-3", spec={"uri": str(layout.checkpoint(3))}))
    assert "checkpoints/step-000003" in on_s3("download", "first-3", tmp_path / "d", "--kind", "checkpoint").err


@pytest.mark.parametrize("by_uri", [False, True])
def test_a_download_is_the_artifact_that_became_ready(
    on_s3: Rlrun, layout: RunLayout, store: Store, api: FakeCluster, tmp_path: Path, by_uri: bool
) -> None:
    uri = layout.adapter(3)
    name = str(uri) if by_uri else "first-3"
    answer = on_s3("download", name, tmp_path / "a")
    assert (answer.code, "no status.digest" in answer.err) == (0, True), "of an earlier version"
    digest = hashlib.sha256(store.get_bytes(uri / "manifest.json")).hexdigest()
    api.put(custom_object(RLADAPTER, "first-3", spec={"uri": str(uri)}, status={"phase": "Ready", "digest": digest}))
    answer = on_s3("download", name, tmp_path / "b")
    assert (answer.code, answer.err) == (0, "")
    store.upload_artifact({"adapter_model.safetensors": b"y" * 100}, uri, ArtifactKind.adapter, step=3)
    changed = on_s3("download", name, tmp_path / "c")
    assert changed.code == 1
    for part in (str(uri), digest, "was changed after it became Ready"):
        assert part in changed.err
    assert not (tmp_path / "c").exists()


def test_a_download_by_uri_needs_only_the_right_to_the_files(
    on_s3: Rlrun, layout: RunLayout, api: FakeCluster, tmp_path: Path
) -> None:
    api.answers["list rladapters in namespace team"] = [ApiError(403, "Forbidden", "no")]
    answer = on_s3("download", str(layout.adapter(3)), tmp_path / "a")
    assert (answer.code, "you cannot read any adapter or checkpoint with this URI" in answer.err) == (0, True)


def test_rollouts_of_agents_name_them(on_s3: Rlrun, store: Store, layout: RunLayout) -> None:
    duel = [record("g0", "r0", agent="asker"), record("g0", "r1", agent="guesser")]
    store.put_bytes(layout.rollouts(4), encode_samples(4, SampleSplit.train, [duel]).data)
    header, *rows = on_s3("rollouts", "first", "-s", "4").out.splitlines()
    place = header.split().index("AGENT")
    assert [row.split()[place] for row in rows] == ["asker", "guesser"]
    texts = on_s3("rollouts", "first", "-s", "4", "--group", "g0").out
    assert "Rollout r0 of asker: reward" in texts
    assert "Rollout r1 of guesser: reward" in texts
    assert "AGENT" not in on_s3("rollouts", "first", "-s", "3").out, "no rollout of this step has an agent"
