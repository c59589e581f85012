"""Sizes of files in manifests."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError
from rlrun.storage.manifest import ArtifactKind, FileEntry, Manifest


def entry(size: int) -> FileEntry:
    return FileEntry(name=f"part-{size}", size=size, sha256="0" * 64)


@pytest.mark.parametrize(("sizes", "total"), [([], 0), ([0], 0), ([3, 0, 4], 7)])
def test_the_size_is_that_of_all_files(sizes: list[int], total: int) -> None:
    made = datetime(2026, 1, 1, tzinfo=UTC)
    manifest = Manifest(kind=ArtifactKind.checkpoint, files=[entry(size) for size in sizes], created_at=made)
    assert manifest.size == total


def test_a_file_cannot_be_smaller_than_empty() -> None:
    with pytest.raises(ValidationError, match="size"):
        entry(-1)
