"""Runs of a shared pool in one replica: the current order (`PoolOrder`), each run's adapters, and the removal of former
runs.
"""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
from rlrun.api.base.received import parse
from rlrun.constants import Reason
from rlrun.protocol.policy import NAME
from rlrun.protocol.shared_pool import ORDER_FILE, PooledRun, PoolOrder, uid_of
from rlrun.service.backoff import Backoff
from rlrun.service.errors import ProblemError
from rlrun.service.pool_metrics import PoolUsageCollector
from rlrun.service.pool_orders import OrderInForce
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store

from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_adapter_sidecar.engine.trainer_fallback import TrainerFallback
from rlrun_adapter_sidecar.engine.vllm_client import Engine
from rlrun_adapter_sidecar.pools.engine_usage import EngineUsageClient
from rlrun_adapter_sidecar.pools.run_adapters import RunAdapters
from rlrun_adapter_sidecar.pools.run_engine import EngineListing, RunEngine
from rlrun_adapter_sidecar.pools.run_files import RunPolicyFiles
from rlrun_adapter_sidecar.pools.settings import PoolSettings

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
"""Pause in seconds between two removals of adapters and files of former runs. Removals are repeated, because a load
that was in progress when its run left may end after a removal.
"""
LONGEST_PAUSE = 60.0
"""Maximum pause in seconds between two attempts at a removal that failed."""


class PoolRuns:
    """Runs of the current `PoolOrder`. A run's files are in a folder named after the run's uid."""

    def __init__(
        self,
        engine_http: aiohttp.ClientSession,
        trainer_http: aiohttp.ClientSession,
        store: Store,
        settings: PoolSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`engine_http` sends the pool's token. `trainer_http` sends no token by default, because runs choose its URLs.
        `clock` returns seconds.
        """
        self._engine_http = engine_http
        self._trainer_http = trainer_http
        self._store = store
        self._settings = settings
        self._folder = settings.adapters_dir
        self._engine = Engine(engine_http, settings.engine_url, settings.load_deadline)
        self._listing = EngineListing(self._engine, clock)
        self._probes = asyncio.Lock()
        self._clock = clock
        self._started = clock()
        self._order = OrderInForce[PooledRun]()
        self._left: dict[str, float] = {}
        """Time at which each former run left. Runs that are missing here left before the sidecar started."""
        self._runs: dict[str, RunAdapters] = {}
        self._changed = asyncio.Event()
        self.metrics = SidecarMetrics()
        self.metrics.adapters.set_function(lambda: sum(run.listed for run in self._runs.values()))
        self.usage = EngineUsageClient(engine_http, settings.engine_url, clock)
        self.metrics.registry.register(PoolUsageCollector(lambda: self.usage.current))

    async def start(self, mounted: PoolOrder) -> None:
        """Apply the first `PoolOrder`: the runs in ORDER_FILE, which survives restarts of the sidecar, with the grant
        of the mounted `PoolOrder`. If the operator has not sent a `PoolOrder` to this pod, the mounted one applies as a
        whole.

        Raises ProblemError as `apply` does.
        """
        file, update = self._folder / ORDER_FILE, {}
        if file.exists():
            try:
                last = parse(PoolOrder, file.read_bytes(), f"The list of runs {file}")
                update = {"runs": last.runs, "number": last.number} if last.number else {}
            except (OSError, ValueError) as error:
                log.warning("using the mounted list of runs until the operator sends a list: %s", error)
        await self.apply(mounted.model_copy(update=update))

    async def apply(self, order: PoolOrder) -> None:
        """Replace the current `PoolOrder`: open new runs, and refuse requests of former runs at once. `keep_clean`
        removes the adapters and files of former runs.

        Raises ProblemError and keeps the current `PoolOrder` if that is newer (`InvalidRequest`, 409; see
        `OrderInForce.check`), a folder in `order` is not an S3 URI (`InvalidRequest`, 422), or `order` cannot be
        written (`AdaptersFolderNotWritable`, 503).
        """
        self._order.check(order.number)
        try:
            for folder in order.folders:
                S3Uri.parse(folder)
            opened = {run.uid: self._runs.get(run.uid) or self._open(run) for run in order.runs}
            self._write(order)
        except ValueError as error:
            raise ProblemError.of(422, Reason.INVALID_REQUEST, f"the list of runs is invalid: {error}") from error
        except OSError as error:
            message = (
                f"the list of runs cannot be written to {self._folder}: {error}; check the volume `adapters` of the pod"
            )
            raise ProblemError.of(503, Reason.ADAPTERS_FOLDER_NOT_WRITABLE, message) from error
        self._store.use_grant(order.grant)
        self._order.replace(order.runs, order.number)
        former = [adapters for uid, adapters in self._runs.items() if uid not in opened]
        now = self._clock()
        self._left |= {adapters.run.uid: now for adapters in former}
        for uid in opened:
            self._left.pop(uid, None)
        self._runs = opened
        for run in order.runs:
            opened[run.uid].run = run
        self._changed.set()
        for adapters in former:
            await adapters.close()

    def find(self, authorization: str) -> RunAdapters | None:
        """Return the run whose token is in the header `Authorization`, or None. The token is also used for
        downloads from the run's trainer.
        """
        ordered = self._order.find(authorization)
        if ordered is None:
            return None
        found = self._runs[ordered.uid]
        found.use_token(authorization)
        return found

    async def keep_clean(self) -> None:
        """Remove the adapters and files of former runs until cancelled. Failed removals are repeated after pauses up to
        LONGEST_PAUSE.
        """
        backoff = Backoff(longest=LONGEST_PAUSE)
        while True:
            self._changed.clear()
            if await self.clean():
                backoff.record_success()
            else:
                backoff.record_failure(0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.pause or CHECK_SECONDS):
                    await self._changed.wait()

    async def clean(self) -> bool:
        """Unload adapters of runs that are not in the `PoolOrder`, and delete the folders of runs that left at least
        `unload_grace` seconds ago. Returns False if an unload or a deletion failed.
        """
        loaded = await self._unload_former()
        return loaded is not None and await self._delete_former(loaded) and not loaded

    async def close(self) -> None:
        """Cancel all operations in progress. Files are kept."""
        for run in self._runs.values():
            await run.close()

    def _open(self, run: PooledRun) -> RunAdapters:
        settings, folder = self._settings, self._folder / run.uid
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            if not NAME.fullmatch(path.name):  # left by an interrupted download or check of the engine
                shutil.rmtree(path, ignore_errors=True)
        headers: dict[str, str] = {}
        fallback = TrainerFallback(self._trainer_http, self._store, headers=headers)
        files = RunPolicyFiles(self._store, folder, settings.download_deadline, self.metrics, fallback)
        engine = RunEngine(self._engine_http, settings.engine_url, settings.load_deadline, run.uid, self._listing)
        return RunAdapters(run, engine, files, settings.unload_grace, self._probes, headers)

    def _write(self, order: PoolOrder) -> None:
        """Write `order` for the engine's middleware, which may run as another user. The engine needs no grant."""
        temporary = self._folder / f"{ORDER_FILE}.tmp"
        content = order.model_copy(update={"grant": ""}).model_dump_json(by_alias=True, exclude_none=True)
        temporary.write_text(content, encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(self._folder / ORDER_FILE)

    async def _unload_former(self) -> set[str] | None:
        """Return the uids of former runs whose adapters could not all be unloaded, or None if the engine did not list
        its adapters.
        """
        try:
            names = await self._engine.adapters()
        except ProblemError as error:
            log.warning("could not list the adapters of former runs: %s", error)
            return None
        failed: set[str] = set()
        for name in names:
            if uid_of(name) in self._runs:
                continue
            try:
                await self._engine.unload(name)
            except ProblemError as error:
                log.warning("could not unload %s of a former run: %s", name, error)
                failed.add(uid_of(name))
            else:
                log.info("unloaded %s, whose run is not in the list of runs", name)
                self.metrics.unloads.inc()
        return failed

    async def _delete_former(self, loaded: set[str]) -> bool:
        """Delete the folders of former runs, except `loaded` and runs that left less than `unload_grace` seconds ago.
        Returns False if a deletion failed.

        The engine may read an adapter's files again for requests that it accepted before the unload, and fails for all
        runs if they are missing.
        """
        done = True
        for path in await asyncio.to_thread(_folders, self._folder):
            uid = path.name
            waits = self._clock() - self._left.get(uid, self._started) < self._settings.unload_grace
            if uid in self._runs or uid in loaded or (waits and not uid.startswith(".")):
                continue
            try:
                # Without the rename, a run that comes back would load into a folder that is being deleted.
                gone = path if path.name.startswith(".") else path.rename(path.with_name(f".{path.name}"))
                self._left.pop(uid, None)
                await asyncio.to_thread(shutil.rmtree, gone)
            except OSError as error:
                log.warning("could not delete %s of a former run: %s", path, error)
                done = False
        return done


def _folders(place: Path) -> list[Path]:
    """Return the folders in `place`. Folders whose deletion has already begun come first."""
    return sorted((path for path in place.iterdir() if path.is_dir()), key=lambda path: not path.name.startswith("."))
