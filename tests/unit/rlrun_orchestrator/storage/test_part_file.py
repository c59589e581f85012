"""Files of lines that are rewritten until they are full."""

import pytest
from rlrun_orchestrator.storage import part_file
from rlrun_orchestrator.storage.part_file import PartFile


def test_a_full_file_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_file, "LINES_PER_PART", 2)
    lines = PartFile("20260101")
    assert [lines.add(text) for text in "abc"] == [
        ("part-20260101-00000", b"a\n"),
        ("part-20260101-00000", b"a\nb\n"),
        ("part-20260101-00001", b"c\n"),
    ]


def test_a_file_with_long_lines_is_full_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_file, "BYTES_PER_PART", 4)
    lines = PartFile("20260101")
    assert [lines.add(text)[0][-1] for text in ("long line", "a", "b", "c")] == ["0", "1", "1", "2"]
