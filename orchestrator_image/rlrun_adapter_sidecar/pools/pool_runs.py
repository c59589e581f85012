"""Runs of a shared pool in one replica: the order in force, each run's adapters, and the removal of former runs."""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import shutil
from pathlib import Path

import aiohttp
from rlrun.constants import Reason
from rlrun.protocol.policy import NAME
from rlrun.protocol.shared_pool import ORDER_FILE, PooledRun, PoolOrder, for_engines, uid_of
from rlrun.service.backoff import Backoff
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store

from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.engine.trainer_fallback import TrainerFallback
from rlrun_adapter_sidecar.engine.vllm_client import Engine
from rlrun_adapter_sidecar.pools.run_adapters import RunAdapters
from rlrun_adapter_sidecar.pools.run_engine import RunEngine
from rlrun_adapter_sidecar.pools.settings import PoolSettings

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
"""Pause between two removals. A load that was in progress when its run left may end after a removal."""
LONGEST_PAUSE = 60.0
"""Maximum pause in seconds between two attempts at a removal that failed."""
SCHEME = "Bearer "


class PoolRuns:
    """Runs of the order in force. A run's files are in the folder of its uid."""

    def __init__(
        self,
        engine_http: aiohttp.ClientSession,
        trainer_http: aiohttp.ClientSession,
        store: Store,
        settings: PoolSettings,
    ) -> None:
        """`engine_http` sends the pool's token. `trainer_http` has no headers of its own, because a run chooses the
        URLs.
        """
        self._engine_http = engine_http
        self._trainer_http = trainer_http
        self._store = store
        self._settings = settings
        self._folder = settings.adapters_dir
        self._engine = Engine(engine_http, settings.engine_url, settings.load_deadline)
        self._runs: dict[str, RunAdapters] = {}
        self._changed = asyncio.Event()
        self.metrics = SidecarMetrics()
        self.metrics.adapters.set_function(lambda: sum(run.listed for run in self._runs.values()))

    async def apply(self, order: PoolOrder) -> None:
        """Put an order in force: open new runs, and refuse requests of former ones at once. Their adapters and files
        are removed by `keep_clean`.

        Raises ProblemError and changes nothing if a folder in the order is not a URI (`InvalidRequest`, 422) or the
        order cannot be written (`AdaptersFolderNotWritable`, 503).
        """
        try:
            for run in order.runs:
                S3Uri.parse(run.policies)
            opened = {run.uid: self._runs.get(run.uid) or self._open(run) for run in order.runs}
            self._write(order)
        except ValueError as error:
            raise ProblemError.of(422, Reason.INVALID_REQUEST, f"the order is invalid: {error}") from error
        except OSError as error:
            message = f"the order cannot be written to {self._folder}: {error}; check the volume `adapters` of the pod"
            raise ProblemError.of(503, Reason.ADAPTERS_FOLDER_NOT_WRITABLE, message) from error
        self._store.use_grant(order.grant)
        former = [adapters for uid, adapters in self._runs.items() if uid not in opened]
        self._runs = opened
        for run in order.runs:
            opened[run.uid].run = run
        self._changed.set()
        for adapters in former:
            await adapters.close()

    def find(self, authorization: str) -> RunAdapters | None:
        """Return the run whose token is in the header `Authorization`, or None. The run's downloads use the token."""
        if not authorization.startswith(SCHEME):
            return None
        token = authorization.removeprefix(SCHEME).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(token).hexdigest()
        found = [run for run in self._runs.values() if hmac.compare_digest(run.run.token_digest, digest)]
        for run in found:
            run.use_token(authorization)
        return found[0] if found else None

    async def keep_clean(self) -> None:
        """Remove what former runs left until cancelled. Failures are repeated with pauses up to LONGEST_PAUSE."""
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
        """Unload adapters and delete folders of runs that are not in the order. Returns whether all are gone."""
        unloaded = await self._unload_former()
        return await self._delete_former() and unloaded

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
        files = PolicyFiles(self._store, folder, settings.download_deadline, self.metrics, fallback)
        engine = RunEngine(self._engine_http, settings.engine_url, settings.load_deadline, run.uid)
        return RunAdapters(run, engine, files, settings.unload_grace, headers)

    def _write(self, order: PoolOrder) -> None:
        """Write the order for the engine's middleware, which may run as another user. The engine needs no grant."""
        content = for_engines(order).model_copy(update={"grant": ""})
        temporary = self._folder / f"{ORDER_FILE}.tmp"
        temporary.write_text(content.model_dump_json(by_alias=True), encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(self._folder / ORDER_FILE)

    async def _unload_former(self) -> bool:
        try:
            names = await self._engine.adapters()
        except ProblemError as error:
            log.warning("could not list the adapters of former runs: %s", error)
            return False
        done = True
        for name in names:
            if uid_of(name) in self._runs:
                continue
            try:
                await self._engine.unload(name)
            except ProblemError as error:
                log.warning("could not unload %s of a former run: %s", name, error)
                done = False
            else:
                log.info("unloaded %s, whose run is not in the order", name)
                self.metrics.unloads.inc()
        return done

    async def _delete_former(self) -> bool:
        done = True
        for path in await asyncio.to_thread(_folders, self._folder):
            if path.name in self._runs:
                continue
            try:
                # Without the rename, a run that comes back would load into a folder that is being deleted.
                gone = path if path.name.startswith(".") else path.rename(path.with_name(f".{path.name}"))
                await asyncio.to_thread(shutil.rmtree, gone)
            except OSError as error:
                log.warning("could not delete %s of a former run: %s", path, error)
                done = False
        return done


def _folders(place: Path) -> list[Path]:
    """Return the folders, those that are being deleted first."""
    return sorted((path for path in place.iterdir() if path.is_dir()), key=lambda path: not path.name.startswith("."))
