"""Sizes and digests of files in manifests."""

import hashlib
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError
from rlrun.protocol.policy import PolicyKind
from rlrun.storage.manifest import ArtifactKind, FileEntry, Manifest, ready_facts, weights_digest


def entry(size: int) -> FileEntry:
    return FileEntry(name=f"part-{size}", size=size, sha256="0" * 64)


@pytest.mark.parametrize(("sizes", "total"), [([], 0), ([0], 0), ([3, 0, 4], 7)])
def test_the_size_is_that_of_all_files(sizes: list[int], total: int) -> None:
    made = datetime(2026, 1, 1, tzinfo=UTC)
    manifest = Manifest(kind=ArtifactKind.checkpoint, files=[entry(size) for size in sizes], created_at=made)
    assert manifest.size == total


@pytest.mark.parametrize(
    ("written", "expires_at"),
    [
        ("2026-02-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("2026-02-01T02:00:00.5+02:00", "2026-02-01T00:00:00Z"),
        ("2026-02-01T00:00:00", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("tomorrow", None),
        (7, None),
        (None, None),
    ],
)
def test_the_status_has_the_time_of_expiry_if_it_is_a_time_with_a_zone(written: object, expires_at: str | None) -> None:
    made = datetime(2026, 1, 1, tzinfo=UTC)
    manifest = Manifest(kind=ArtifactKind.adapter, files=[], created_at=made, details={"expiresAt": written})
    assert ready_facts(manifest, "").get("expiresAt") == expires_at


def test_a_file_cannot_be_smaller_than_empty() -> None:
    with pytest.raises(ValidationError, match="size"):
        entry(-1)


def stored(*names: str) -> list[FileEntry]:
    return [FileEntry(name=name, size=1, sha256=hashlib.sha256(name.encode()).hexdigest()) for name in names]


def test_the_digest_of_one_file_with_weights_is_its_own() -> None:
    files = stored("config.json", "adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json")
    assert weights_digest(files, PolicyKind.adapter) == files[1].sha256
    assert weights_digest(files, PolicyKind.weights) == files[2].sha256
    assert weights_digest(files[:1], PolicyKind.weights) is None


def test_the_digest_of_divided_weights_covers_all_files_in_the_order_of_their_names() -> None:
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    files = stored("config.json", two, one, "other-00001-of-00002.safetensors", "model-00003-of-00002.safetensors.bak")
    printed = f"{files[2].sha256}  {one}\n{files[1].sha256}  {two}\n"
    assert weights_digest(files, PolicyKind.weights) == hashlib.sha256(printed.encode()).hexdigest()


@pytest.mark.parametrize(
    "names",
    [
        ["model-00001-of-00002.safetensors"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00003.safetensors"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors"],
    ],
)
def test_incomplete_or_mixed_files_have_no_digest(names: list[str]) -> None:
    assert weights_digest(stored(*names), PolicyKind.weights) is None
