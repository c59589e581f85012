"""Atomic writes."""

from pathlib import Path

from local_cluster.host import atomic_files


def test_unchanged_file_is_not_written_again(tmp_path: Path) -> None:
    file = atomic_files.write(tmp_path / "deep" / "file", "one", mode=0o600)
    before = file.stat()
    atomic_files.write(file, "one")
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert file.stat().st_ino == before.st_ino
    atomic_files.write(file, "two")
    assert file.read_text() == "two"
    assert list(file.parent.iterdir()) == [file]
