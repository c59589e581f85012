"""The operator's access to S3: boto3 in a bounded thread pool, with time limits and cached checks."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri, step_of
from rlrun.storage.manifest import Manifest
from rlrun.storage.store import Corrupt, Store, StoreError
from typing_extensions import override

from rlrun_operator.planning.plan.actions import RunFilesDeletion
from rlrun_operator.planning.plan.artifact_catalog import ArtifactObjectKind, ObservedArtifact
from rlrun_operator.planning.policies.artifacts import FOLDER_KINDS

T = TypeVar("T")

Sizes = Mapping[tuple[str, int], int]
"""Sizes of artifacts in bytes, without manifests, by kind and step."""

CALL_SECONDS = 60.0
"""Time limit of one call. A deletion of many files is interrupted and continued later."""
CHECK_SECONDS = 10.0
"""Time for which a check of bucket and credentials is cached."""


class StoreTimeout(StoreError):
    """S3 did not finish a call within its time limit."""

    reason = Reason.S3_UNREACHABLE


class ArtifactStore(Protocol):
    """S3 operations of the operator. Every method raises StoreError."""

    async def check(self, variables: Mapping[str, str], bucket: str) -> Problem | None:
        """Return the reason why the bucket cannot be used with these AWS_* variables, or None."""

    async def list(self, variables: Mapping[str, str], layout: RunLayout, ready: Sizes) -> list[ObservedArtifact]:
        """Return the run's checkpoints and adapters, verified against their manifests.

        `ready` has the sizes of artifacts that were complete before. While a size is unchanged, the manifest is not
        read again.
        """

    async def verify(self, variables: Mapping[str, str], uri: str) -> str | None:
        """Return a message with the artifact's missing files, or None if it is complete."""

    async def put(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        """Write one file."""

    async def delete(self, variables: Mapping[str, str], uri: str) -> None:
        """Delete a folder if it exists."""

    async def purge(self, variables: Mapping[str, str], purge: RunFilesDeletion) -> None:
        """Delete all files of a run except for the folders to keep."""


class S3ArtifactStore(ArtifactStore):
    """`ArtifactStore` on S3."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3")
        self._stores: dict[tuple[tuple[str, str], ...], Store] = {}
        self._checks: dict[tuple[object, str], tuple[float, Problem | None]] = {}

    def close(self) -> None:
        """Close threads and connections without waiting for running calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for store in self._stores.values():
            store.close()

    @override
    async def check(self, variables: Mapping[str, str], bucket: str) -> Problem | None:
        key = (tuple(sorted(variables.items())), bucket)
        found = self._checks.get(key)
        if found is not None and time.monotonic() - found[0] < CHECK_SECONDS:
            return found[1]
        try:
            await self._call(lambda: self._store(variables).check(bucket))
            problem = None
        except StoreError as error:
            problem = error.problem
        self._checks = {key: (time.monotonic(), problem)}
        return problem

    @override
    async def list(self, variables: Mapping[str, str], layout: RunLayout, ready: Sizes) -> list[ObservedArtifact]:
        return await self._call(lambda: _list(self._store(variables), layout, ready))

    @override
    async def verify(self, variables: Mapping[str, str], uri: str) -> str | None:
        return await self._call(lambda: _verify(self._store(variables), S3Uri.parse(uri)))

    @override
    async def put(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        await self._call(lambda: self._store(variables).put_bytes(S3Uri.parse(uri), data))

    @override
    async def delete(self, variables: Mapping[str, str], uri: str) -> None:
        await self._call(lambda: self._store(variables).delete_prefix(S3Uri.parse(uri)))

    @override
    async def purge(self, variables: Mapping[str, str], purge: RunFilesDeletion) -> None:
        await self._call(lambda: _purge(self._store(variables), S3Uri.parse(purge.root), purge.keep))

    def _store(self, variables: Mapping[str, str]) -> Store:
        key = tuple(sorted(variables.items()))
        if key not in self._stores:
            # The Secret has changed, so the old credentials are obsolete.
            for old in self._stores.values():
                old.close()
            self._stores = {key: Store.from_variables(variables)}
        return self._stores[key]

    async def _call(self, work: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.wait_for(future, CALL_SECONDS)
        except TimeoutError:
            raise StoreTimeout(
                f"S3 did not finish a call within {CALL_SECONDS:.0f} s. The operator retries it."
            ) from None


def _list(store: Store, layout: RunLayout, ready: Sizes) -> list[ObservedArtifact]:
    found = []
    for folder, kind in FOLDER_KINDS.items():
        folder_uri = layout.root / folder
        folders: dict[str, dict[str, int]] = defaultdict(dict)
        # One listing for all folders, instead of one request per checkpoint and reconcile.
        for name, size in store.list_files(folder_uri):
            head, _, inner = name.partition("/")
            folders[head][inner] = size
        for name, files in sorted(folders.items()):
            try:
                step = step_of(name)
            except ValueError:
                continue
            found.append(_inspect(store, kind, step, folder_uri / name, files, ready.get((kind, step))))
    return found


def _inspect(
    store: Store, kind: ArtifactObjectKind, step: int, uri: S3Uri, files: Mapping[str, int], known: int | None
) -> ObservedArtifact:
    if MANIFEST not in files:
        missing = f"{MANIFEST} is missing in S3: the artifact is being uploaded again, or was deleted."
        return ObservedArtifact(kind, step, str(uri), problem=None if known is None else missing)
    if known is not None and sum(files.values()) - files[MANIFEST] == known:
        return ObservedArtifact(kind, step, str(uri))
    try:
        manifest = store.read_manifest(uri)
    except Corrupt as error:
        return ObservedArtifact(kind, step, str(uri), problem=str(error))
    return ObservedArtifact(kind, step, str(uri), manifest, _missing_files(manifest, files) if manifest else None)


def _missing_files(manifest: Manifest, files: Mapping[str, int]) -> str | None:
    """Return a message with the files that differ from the manifest, or None."""
    wrong = [entry for entry in manifest.files if files.get(entry.name) != entry.size]
    if not wrong:
        return None
    first = wrong[0]
    held = f"{files[first.name]} of {first.size} bytes" if first.name in files else "missing"
    more = f", and {len(wrong) - 1} more files" if len(wrong) > 1 else ""
    return (
        f"Incomplete in S3: {first.name} is {held}{more}. Use an older artifact, and delete this object and its files."
    )


def _verify(store: Store, uri: S3Uri) -> str | None:
    try:
        manifest = store.read_manifest(uri)
    except Corrupt as error:
        return str(error)
    if manifest is None:
        return f"{uri} has no {MANIFEST}"
    return _missing_files(manifest, dict(store.list_files(uri)))


def _purge(store: Store, root: S3Uri, keep: tuple[str, ...]) -> None:
    if not keep:
        store.delete_prefix(root)
        return
    kept = {S3Uri.parse(uri) for uri in keep}
    for folder in store.list_folders(root):
        folder_uri = root / folder
        if not any(k.key.startswith(f"{folder_uri.key}/") for k in kept):
            store.delete_prefix(folder_uri)
            continue
        for inner in store.list_folders(folder_uri):
            if folder_uri / inner not in kept:
                store.delete_prefix(folder_uri / inner)
