"""S3 answers 500 at each position of an upload, of a retention and of a purge, exhaustively; before and after effect.

At every such moment no artifact with a manifest is incomplete, and doing the same once more, with an S3 that is well
again, gives what an undisturbed try would have given.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store, StoreError
from rlrun.storage.transfer import PART_BYTES

from tests.chaos.invariants import Picture, promised_too_much
from tests.chaos.scenario import Lost, Scenario, require, require_strike
from tests.chaos.unit.bucket import BUCKET, MemoryBucket, store_of
from tests.chaos.unit.faults import FailAt, Gate, s3_500, s3_silent

PLACE = S3Uri(BUCKET, "team/uid-1/checkpoints/step-000002")
OLDER = {"adapter": b"older" * 10, "optimizer": b"older" * 20}
NEWER = {"adapter": b"newer" * 12, "optimizer": b"newer" * 25, "state/rng": b"3"}
LARGE = 2 * PART_BYTES + 5
Work = Callable[[Store], object]


def upload_new(store: Store) -> None:
    """Small files to an empty place."""
    store.upload_artifact(NEWER, PLACE, ArtifactKind.checkpoint, step=2, policy_version=2)


def upload_over(store: Store) -> None:
    """Small files in place of older ones; the older upload is made by `prepare`."""
    upload_new(store)


def upload_once(store: Store) -> None:
    """Small files to an empty place, as a trainer saves a checkpoint."""
    store.upload_artifact(NEWER, PLACE, ArtifactKind.checkpoint, step=2, policy_version=2, once=True)


def upload_folder_once(store: Store) -> None:
    """The same of a folder with a file that goes up in parts."""
    upload_folder(store, once=True)


def upload_folder(store: Store, *, once: bool = False) -> None:
    """A folder with a file that goes up in parts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "adapter").write_bytes(NEWER["adapter"])
        with (folder / "large").open("wb") as file:
            file.truncate(LARGE)
        store.upload_artifact(folder, PLACE, ArtifactKind.checkpoint, step=2, policy_version=2, once=once)


def delete_one(store: Store) -> None:
    """Delete one artifact, as retention does."""
    store.delete_prefix(PLACE)


def purge_all(store: Store) -> None:
    """Delete the files of a run except a deployed adapter, as the deletion of the run does."""
    store.delete_prefix(S3Uri(BUCKET, "team/uid-1"), [S3Uri(BUCKET, "team/uid-1/adapters/step-000001")])


def prepare(store: Store) -> None:
    """Upload an older artifact to the place, and other artifacts that must not change."""
    store.upload_artifact(OLDER, PLACE, ArtifactKind.checkpoint, step=2, policy_version=2)
    for uri in (
        "team/uid-1/adapters/step-000001",
        "team/uid-1/checkpoints/step-000020",
        "team/uid-2/checkpoints/step-000002",
    ):
        store.upload_artifact(OLDER, S3Uri(BUCKET, uri), ArtifactKind.adapter, step=1)


WORKS: dict[str, tuple[Work, bool]] = {
    "upload": (upload_new, False),
    "upload-over-older": (upload_over, True),
    "upload-in-parts": (upload_folder, False),
    "upload-once": (upload_once, False),
    "upload-once-in-parts": (upload_folder_once, False),
    "retention": (delete_one, True),
    "purge": (purge_all, True),
}
ERRORS = {"500": s3_500, "silence": s3_silent}


def scenarios() -> Iterator[Scenario]:
    """Every call position of every work, with each error, before and after its effect."""
    for name, (work, prepared) in WORKS.items():
        for index, call in enumerate(_calls(work, prepared)):
            for error, make in ERRORS.items():
                for after in (False, True):
                    if after and error == "silence" and name.endswith("in-parts"):
                        continue
                    when = "after" if after else "before"
                    rule = FailAt(index, "s3", after, make)
                    title = f"s3-{error}-{when}-each-call-of-{name}/{index:02d}-{call}"
                    yield Scenario(title, "unit", broken(work, prepared, rule))


def _world(prepared: bool, gate: Gate | None = None) -> tuple[MemoryBucket, Store]:
    bucket = MemoryBucket()
    if prepared:
        prepare(store_of(bucket))
    return bucket, store_of(bucket, gate)


def _calls(work: Work, prepared: bool) -> list[str]:
    gate = Gate()
    work(_world(prepared, gate)[1])
    return [call.name for call in gate.calls]


def broken(work: Work, prepared: bool, rule: FailAt) -> Callable[[Any], None]:
    """The work is cut off at one call and then done again."""

    def play(_: Any) -> None:
        expected = _world(prepared)[0]
        work(store_of(expected))
        gate = Gate(FailAt(rule.index, rule.where, rule.after_effect, rule.error))
        bucket, store = _world(prepared, gate)
        try:
            work(store)
        except StoreError:
            pass
        else:
            require_strike(len(gate.calls) > rule.index, f"S3 fails at call {rule.index}")
            raise Lost("an error of S3 was swallowed")
        require(half_artifacts(bucket))
        work(store_of(bucket))
        require(half_artifacts(bucket))
        if bucket.uploads:
            raise Lost(
                f"parts of {[key for key, _ in bucket.uploads.values()]} are left, which nothing will ever complete"
            )
        if without_dates(bucket) != without_dates(expected):
            raise Lost(f"{sorted(bucket.data)} is left, an undisturbed try leaves {sorted(expected.data)}")

    return play


def half_artifacts(bucket: MemoryBucket) -> list[str]:
    """Return the folders whose manifest lists files that are missing."""
    return promised_too_much(Picture([], bucket.files(), bucket.manifests()))


def without_dates(bucket: MemoryBucket) -> dict[str, Any]:
    """What lies in the bucket; of manifests what does not depend on the clock."""
    found: dict[str, Any] = {k: v for k, v in bucket.files().items() if not k.endswith(f"/{MANIFEST}")}
    for folder, manifest in bucket.manifests().items():
        found[folder] = [(f.name, f.size, f.sha256) for f in manifest.files]
    return found
