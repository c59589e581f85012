"""What waits for S3 on disk: order, bound, and what a process that was killed leaves."""

from pathlib import Path

import pytest
from rlrun.storage.layout import S3Uri
from rlrun_orchestrator.storage.upload_spool import UploadPriority, UploadSpool

ROOT = S3Uri("bucket", "run")


def taken(spool: UploadSpool, *lanes: UploadPriority) -> list[tuple[str, bytes]]:
    """(name, data) of all that waits, in its order; nothing waits afterwards."""
    found = []
    while (waiting := spool.next(*(lanes or tuple(UploadPriority)))) is not None:
        data = spool.read(waiting)
        assert data is not None
        found.append((waiting.uri.key.removeprefix("run/"), data))
        spool.mark_uploaded(waiting)
    return found


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_later_version_replaces_the_queued_one_in_its_position(tmp_path: Path) -> None:
    spool = UploadSpool(tmp_path, 1000)
    spool.enqueue(ROOT / "a", UploadPriority.metrics, b"a1")
    spool.enqueue(ROOT / "b", UploadPriority.metrics, b"b1")
    spool.enqueue(ROOT / "a", UploadPriority.metrics, b"a2\nwith\nlines")
    assert (len(spool), spool.bytes) == (2, 15)
    assert taken(spool) == [("a", b"a2\nwith\nlines"), ("b", b"b1")]
    assert (len(spool), spool.bytes, files(tmp_path)) == (0, 0, [])


def test_a_version_replaced_during_its_upload_does_not_mark_the_newer_one_uploaded(tmp_path: Path) -> None:
    spool = UploadSpool(tmp_path, 1000)
    spool.enqueue(ROOT / "a", UploadPriority.state, b"1")
    under_way = spool.next(UploadPriority.state)
    assert under_way is not None
    spool.enqueue(ROOT / "a", UploadPriority.state, b"2")
    assert spool.read(under_way) is None
    spool.mark_uploaded(under_way)
    assert taken(spool) == [("a", b"2")]


def test_the_oldest_rollouts_go_first_then_metrics_and_the_state_last(tmp_path: Path) -> None:
    spool = UploadSpool(tmp_path, 100)
    for name, lane in (
        ("m0", UploadPriority.metrics),
        ("r1", UploadPriority.rollouts),
        ("r2", UploadPriority.rollouts),
        ("s", UploadPriority.state),
    ):
        spool.enqueue(ROOT / name, lane, b"x" * 25)
    spool.enqueue(ROOT / "r3", UploadPriority.rollouts, b"x" * 25)
    assert [name for name, _ in kept(spool)] == ["m0", "r2", "s", "r3"]
    spool.enqueue(ROOT / "m4", UploadPriority.metrics, b"x" * 50)
    assert [name for name, _ in kept(spool)] == ["m0", "s", "m4"]
    assert spool.dropped == 3
    spool.enqueue(ROOT / "r5", UploadPriority.rollouts, b"x" * 25)
    assert [name for name, _ in kept(spool)] == ["m0", "s", "m4"], "rollouts take no room from what matters more"
    spool.enqueue(ROOT / "s", UploadPriority.state, b"x" * 50)
    assert [name for name, _ in kept(spool)] == ["s", "m4"]
    spool.enqueue(ROOT / "s", UploadPriority.state, b"x" * 60)
    assert [name for name, _ in kept(spool)] == ["s"]
    assert (spool.dropped, spool.bytes) == (6, 60)


def kept(spool: UploadSpool) -> list[tuple[str, int]]:
    found = sorted(spool._waiting.values(), key=lambda w: w.turn)
    return [(waiting.uri.key.removeprefix("run/"), waiting.size) for waiting in found]


def test_an_object_larger_than_the_limit_displaces_no_other(tmp_path: Path) -> None:
    spool = UploadSpool(tmp_path, 100)
    spool.enqueue(ROOT / "m", UploadPriority.metrics, b"older")
    spool.enqueue(ROOT / "s", UploadPriority.state, b"state")
    spool.enqueue(ROOT / "m", UploadPriority.metrics, b"x" * 200)
    assert (taken(spool), spool.dropped) == ([("m", b"older"), ("s", b"state")], 1)


def test_the_next_process_restores_the_spool_of_a_killed_one(tmp_path: Path) -> None:
    first = UploadSpool(tmp_path, 1000)
    first.enqueue(ROOT / "a", UploadPriority.metrics, b"a")
    first.enqueue(ROOT / "state.json", UploadPriority.state, b"1")
    first.enqueue(ROOT / "a", UploadPriority.metrics, b"a2")
    (tmp_path / "000000000009.partial").write_bytes(b"half of")
    (tmp_path / "notes.txt").write_bytes(b"somebody else's")
    second = UploadSpool(tmp_path, 1000)
    assert second.pending_version(ROOT / "state.json") == b"1"
    assert second.pending_version(ROOT / "b") is None
    second.enqueue(ROOT / "state.json", UploadPriority.state, b"2")
    assert taken(second) == [("a", b"a2"), ("state.json", b"2")]
    assert files(tmp_path) == ["notes.txt"]


def test_the_newer_of_two_versions_left_by_a_kill_is_restored(tmp_path: Path) -> None:
    first = UploadSpool(tmp_path, 1000)
    first.enqueue(ROOT / "a", UploadPriority.state, b"1")
    older = (tmp_path / files(tmp_path)[0]).read_bytes()
    name = files(tmp_path)[0]
    first.enqueue(ROOT / "a", UploadPriority.state, b"22")
    (tmp_path / name).write_bytes(older)
    second = UploadSpool(tmp_path, 1000)
    assert (len(second), second.bytes) == (1, 2)
    assert taken(second) == [("a", b"22")]


def test_a_full_disk_drops_rollouts_and_keeps_the_state_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = UploadSpool(tmp_path, 1000)
    spool.enqueue(ROOT / "r0", UploadPriority.rollouts, b"r")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    spool.enqueue(ROOT / "s", UploadPriority.state, b"state")
    spool.enqueue(ROOT / "r1", UploadPriority.rollouts, b"r")
    assert taken(spool) == [("s", b"state")]
    assert spool.dropped == 2
    assert spool.bytes == 0


def test_a_spool_without_a_folder_keeps_objects_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    spool = UploadSpool(tmp_path / "file" / "spool", 1000)
    spool.enqueue(ROOT / "s", UploadPriority.state, b"state")
    assert taken(spool) == [("s", b"state")]
