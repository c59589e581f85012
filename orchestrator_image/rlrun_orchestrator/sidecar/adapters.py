"""The adapters of one replica: downloaded once, loaded once, confirmed by the engine, removed late.

Names are versions with a digest and never used twice, so everything here is idempotent: a load asked for again finds
the files or the adapter in place, and two at a time share one.
"""

import asyncio
import logging
import shutil
import time
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from rlrun.artifacts.layout import MANIFEST, S3Uri
from rlrun.artifacts.manifest import Manifest
from rlrun.artifacts.store import StoreError, Unreachable
from rlrun.schema.wire import AdapterList, PolicyRef, Problem

from rlrun_orchestrator.answers import Refusal
from rlrun_orchestrator.sidecar.engine import Engine

log = logging.getLogger(__name__)

WEIGHTS = "adapter_model.safetensors"
CONFIRM_SECONDS = 10.0
CONFIRM_PAUSE = 0.2
LOAD_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)


class ArtifactSource(Protocol):
    """The part of `rlrun.artifacts.store.Store` that is used here."""

    def download_artifact(self, uri: S3Uri, dest: Path) -> Manifest:
        """Bring a verified artifact to `dest`, all or nothing. Raises StoreError."""
        ...


class Metrics:
    """What Prometheus reads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "rlrun_sidecar_load_seconds",
            "Time of a successful load, download included.",
            registry=self.registry,
            buckets=LOAD_BUCKETS,
        )
        self.loads = Counter(
            "rlrun_sidecar_loads", "Loads by outcome: ok or the problem's reason.", ["outcome"], registry=self.registry
        )
        self.unloads = Counter("rlrun_sidecar_unloads", "Adapters unloaded.", registry=self.registry)
        self.bytes = Counter("rlrun_sidecar_downloaded_bytes", "Bytes downloaded.", registry=self.registry)
        self.adapters = Gauge(
            "rlrun_sidecar_adapters", "Adapters in the engine when it was last asked.", registry=self.registry
        )


class Adapters:
    """Moves adapters between S3, the shared folder and the engine. Times are seconds."""

    def __init__(
        self, engine: Engine, source: ArtifactSource, folder: Path, download_deadline: float, unload_grace: float
    ) -> None:
        self._engine = engine
        self._source = source
        self._folder = folder
        self._download_deadline = download_deadline
        self._unload_grace = unload_grace
        self._loads: dict[str, asyncio.Task[float]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        self.metrics = Metrics()

    async def list(self) -> AdapterList:
        """What the engine says it serves. Raises Refusal."""
        names = await self._engine.adapters()
        self.metrics.adapters.set(len(names))
        return AdapterList(adapters=names)

    async def load(self, policy: PolicyRef) -> AdapterList:
        """Have the engine serve the policy under its name, and return once its own list says so. Raises Refusal."""
        self._keep_files(policy.name)
        listed = await self.list()
        if policy.name in listed.adapters:
            return listed
        task = self._loads.get(policy.name)
        if task is None:
            task = asyncio.create_task(self._load(policy))
            self._loads[policy.name] = task
            task.add_done_callback(lambda _: self._loads.pop(policy.name, None))
        # A caller that hangs up must not take the load from the others that wait for it.
        seconds = await asyncio.shield(task)
        return (await self.list()).model_copy(update={"load_seconds": seconds})

    async def unload(self, name: str) -> AdapterList:
        """Take the adapter out of the engine and its files away a while later. Raises Refusal."""
        task = self._loads.get(name)
        if task is not None:
            await asyncio.wait({task})
        await self._engine.unload(name)
        self.metrics.unloads.inc()
        self._keep_files(name)
        self._removals[name] = asyncio.create_task(self._remove_later(name))
        return await self.list()

    async def close(self) -> None:
        """Stop what is under way; files stay."""
        tasks = [*self._loads.values(), *self._removals.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, policy: PolicyRef) -> float:
        started = time.monotonic()
        try:
            path = await self._download(policy)
            await self._engine.load(policy.name, str(path))
            await self._confirm(policy.name)
        except Refusal as refusal:
            self.metrics.loads.labels(refusal.problem.reason).inc()
            log.error("load of %s: %s", policy.name, refusal)
            raise
        seconds = time.monotonic() - started
        self.metrics.loads.labels("ok").inc()
        self.metrics.seconds.observe(seconds)
        log.info("loaded %s in %.2f s", policy.name, seconds)
        return seconds

    async def _download(self, policy: PolicyRef) -> Path:
        dest = self._folder / policy.name
        if await asyncio.to_thread(_is_whole, dest, policy.digest):
            return dest
        try:
            uri = S3Uri.parse(policy.uri)
            download = asyncio.to_thread(self._source.download_artifact, uri, dest)
            manifest = await asyncio.wait_for(download, self._download_deadline)
        except ValueError as error:
            raise _download_failed(422, str(error)) from error
        except TimeoutError as error:
            raise _download_failed(504, f"{policy.uri} took longer than {self._download_deadline:g} s") from error
        except StoreError as error:
            status = 503 if isinstance(error, Unreachable) else 424
            raise _download_failed(status, f"{error.problem.reason}: {error.problem.message}") from error
        except OSError as error:
            raise _download_failed(507, f"{dest} cannot be written: {error}") from error
        self.metrics.bytes.inc(manifest.size)
        if not _promises(manifest, policy.digest):
            await asyncio.to_thread(shutil.rmtree, dest, True)
            raise _download_failed(
                424, f"{policy.uri} holds other weights than {policy.name}: publish the policy again"
            )
        return dest

    async def _confirm(self, name: str) -> None:
        ends = time.monotonic() + CONFIRM_SECONDS
        while name not in await self._engine.adapters():
            if time.monotonic() > ends:
                message = f"the engine accepted {name} and does not list it: look at the engine's log"
                raise Refusal(502, Problem(reason="AdapterLoadRejected", message=message))
            await asyncio.sleep(CONFIRM_PAUSE)

    def _keep_files(self, name: str) -> None:
        removal = self._removals.pop(name, None)
        if removal is not None:
            removal.cancel()

    async def _remove_later(self, name: str) -> None:
        await asyncio.sleep(self._unload_grace)
        await asyncio.to_thread(shutil.rmtree, self._folder / name, True)
        self._removals.pop(name, None)


def _promises(manifest: Manifest, digest: str) -> bool:
    return any(entry.name == WEIGHTS and entry.sha256 == digest for entry in manifest.files)


def _is_whole(folder: Path, digest: str) -> bool:
    # A folder appears by rename after its files were verified; this only guards against another policy's files.
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    files = [(folder / entry.name, entry.size) for entry in manifest.files]
    return _promises(manifest, digest) and all(path.is_file() and path.stat().st_size == size for path, size in files)


def _download_failed(status: int, message: str) -> Refusal:
    return Refusal(status, Problem(reason="AdapterDownloadFailed", message=message))
