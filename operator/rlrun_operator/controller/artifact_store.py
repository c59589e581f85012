"""S3 for the operator: boto3 in a bounded pool of threads, answers with a deadline, checks remembered for a moment."""

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

from rlrun_operator.planning.plan.actions import RunFilesDeletion
from rlrun_operator.planning.plan.artifact_catalog import ArtifactObjectKind, ObservedArtifact
from rlrun_operator.planning.policies.artifacts import FOLDER_KINDS

T = TypeVar("T")

Sizes = Mapping[tuple[str, int], int]
"""Bytes of artifacts by kind and step, manifests not included."""

CALL_SECONDS = 60.0
"""For one piece of work in S3; the deletion of many files is cut off and continued later."""
CHECK_SECONDS = 10.0
"""How long a verdict on bucket and credentials is believed."""


class StoreTimeout(StoreError):
    """S3 works, but not in time."""

    reason = Reason.S3_UNREACHABLE


class Artifacts(Protocol):
    """What the operator asks of S3. Every method raises StoreError."""

    async def check(self, variables: Mapping[str, str], bucket: str) -> Problem | None:
        """Why the bucket cannot be used with these AWS_* variables; None when it can."""

    async def list(self, variables: Mapping[str, str], layout: RunLayout, ready: Sizes) -> list[ObservedArtifact]:
        """The run's checkpoints and adapters, every file looked at.

        `ready` has the bytes of those that were found whole before: no manifest is read as long as they have them.
        """

    async def verify(self, variables: Mapping[str, str], uri: str) -> str | None:
        """What the artifact lacks of what its manifest names, for people; None when it is whole."""

    async def put(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        """Writes one file."""

    async def delete(self, variables: Mapping[str, str], uri: str) -> None:
        """Deletes a folder; one that is not there is deleted already."""

    async def purge(self, variables: Mapping[str, str], purge: RunFilesDeletion) -> None:
        """Deletes all files of a run but some folders."""


class StoreArtifacts:
    """`Artifacts` in a real S3."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3")
        self._stores: dict[tuple[tuple[str, str], ...], Store] = {}
        self._checks: dict[tuple[object, str], tuple[float, Problem | None]] = {}

    def close(self) -> None:
        """Lets go of threads and connections; what runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for store in self._stores.values():
            store.close()

    async def check(self, variables: Mapping[str, str], bucket: str) -> Problem | None:
        """See `Artifacts`."""
        key = (tuple(sorted(variables.items())), bucket)
        found = self._checks.get(key)
        if found is not None and time.monotonic() - found[0] < CHECK_SECONDS:
            return found[1]
        try:
            await self._call(lambda: self._store(variables).check(bucket))
            verdict = None
        except StoreError as error:
            verdict = error.problem
        self._checks = {key: (time.monotonic(), verdict)}
        return verdict

    async def list(self, variables: Mapping[str, str], layout: RunLayout, ready: Sizes) -> list[ObservedArtifact]:
        """See `Artifacts`."""
        return await self._call(lambda: _list(self._store(variables), layout, ready))

    async def verify(self, variables: Mapping[str, str], uri: str) -> str | None:
        """See `Artifacts`."""
        return await self._call(lambda: _verify(self._store(variables), S3Uri.parse(uri)))

    async def put(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        """See `Artifacts`."""
        await self._call(lambda: self._store(variables).put_bytes(S3Uri.parse(uri), data))

    async def delete(self, variables: Mapping[str, str], uri: str) -> None:
        """See `Artifacts`."""
        await self._call(lambda: self._store(variables).delete_prefix(S3Uri.parse(uri)))

    async def purge(self, variables: Mapping[str, str], purge: RunFilesDeletion) -> None:
        """See `Artifacts`."""
        await self._call(lambda: _purge(self._store(variables), S3Uri.parse(purge.root), purge.keep))

    def _store(self, variables: Mapping[str, str]) -> Store:
        key = tuple(sorted(variables.items()))
        if key not in self._stores:
            # Old credentials are of no use any more once the Secret has changed.
            for old in self._stores.values():
                old.close()
            self._stores = {key: Store.from_variables(variables)}
        return self._stores[key]

    async def _call(self, work: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.wait_for(future, CALL_SECONDS)
        except TimeoutError:
            raise StoreTimeout(f"S3 did not finish within {CALL_SECONDS:.0f} s; the work is tried again") from None


def _list(store: Store, layout: RunLayout, ready: Sizes) -> list[ObservedArtifact]:
    found = []
    for folder, kind in FOLDER_KINDS.items():
        place = layout.root / folder
        folders: dict[str, dict[str, int]] = defaultdict(dict)
        # One listing of everything: a request for each folder would be one for each checkpoint and every look.
        for name, size in store.list_files(place):
            head, _, inner = name.partition("/")
            folders[head][inner] = size
        for name, files in sorted(folders.items()):
            try:
                step = step_of(name)
            except ValueError:
                continue
            found.append(_look(store, kind, step, place / name, files, ready.get((kind, step))))
    return found


def _look(
    store: Store, kind: ArtifactObjectKind, step: int, uri: S3Uri, files: Mapping[str, int], known: int | None
) -> ObservedArtifact:
    if MANIFEST not in files:
        gone = f"{MANIFEST} is gone: it is being uploaded anew, or somebody deleted it"
        return ObservedArtifact(kind, step, str(uri), problem=None if known is None else gone)
    if known is not None and sum(files.values()) - files[MANIFEST] == known:
        return ObservedArtifact(kind, step, str(uri))
    try:
        manifest = store.read_manifest(uri)
    except Corrupt as error:
        return ObservedArtifact(kind, step, str(uri), problem=str(error))
    return ObservedArtifact(kind, step, str(uri), manifest, _lacks(manifest, files) if manifest else None)


def _lacks(manifest: Manifest, files: Mapping[str, int]) -> str | None:
    """What is missing of a manifest's files, in words."""
    wrong = [entry for entry in manifest.files if files.get(entry.name) != entry.size]
    if not wrong:
        return None
    first = wrong[0]
    held = f"{files[first.name]} of {first.size} bytes" if first.name in files else "missing"
    more = f", and {len(wrong) - 1} more files" if len(wrong) > 1 else ""
    return f"not whole in S3: {first.name} is {held}{more}. Use an older one, and delete this object and its files."


def _verify(store: Store, uri: S3Uri) -> str | None:
    try:
        manifest = store.read_manifest(uri)
    except Corrupt as error:
        return str(error)
    if manifest is None:
        return f"{uri} has no {MANIFEST}"
    return _lacks(manifest, dict(store.list_files(uri)))


def _purge(store: Store, root: S3Uri, keep: tuple[str, ...]) -> None:
    if not keep:
        store.delete_prefix(root)
        return
    kept = {S3Uri.parse(uri) for uri in keep}
    for folder in store.list_folders(root):
        place = root / folder
        if not any(k.key.startswith(f"{place.key}/") for k in kept):
            store.delete_prefix(place)
            continue
        for inner in store.list_folders(place):
            if place / inner not in kept:
                store.delete_prefix(place / inner)
