"""Reconciler for the adapters of one replica: desired adapters are loaded, all others are unloaded.

The engine's own list is authoritative, so the next check notices an engine restart or an adapter that another client
unloaded. Every failure is reported as a state and retried after a pause that doubles up to five minutes. Adapters are
loaded concurrently, so a failed load does not delay the others.
"""

import asyncio
import contextlib
import hashlib
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import AdapterReport, DesiredAdapters, LoadState, ServedAdapter, ServingReport
from rlrun.service.backoff import Backoff
from rlrun.service.errors import ProblemError
from rlrun.storage.store import Store

from rlrun_adapter_sidecar.engine.adapter_probe import AdapterProbe
from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.engine.vllm_client import PROBE_NAME, Engine
from rlrun_adapter_sidecar.serving.adapter_source import policy_of
from rlrun_adapter_sidecar.serving.settings import ServingSettings

log = logging.getLogger(__name__)

UNREACHABLE = Reason.ENGINE_UNREACHABLE
BUSY = 504
"""HTTP status of the error for an engine that did not respond in time. The engine may still be serving."""


@dataclass
class ManagedAdapter:
    """Adapter that is desired or must be unloaded."""

    adapter: ServedAdapter
    state: LoadState = LoadState.loading
    problem: Problem | None = None
    was_loaded: bool = False
    backoff: Backoff = field(default_factory=lambda: Backoff(first=5.0, longest=300.0))
    task: "asyncio.Task[None] | None" = None

    @property
    def busy(self) -> bool:
        """True while a load is in progress."""
        return self.task is not None and not self.task.done()

    def record_failure(self, problem: Problem, now: float) -> None:
        """Record a failed load or unload."""
        self.problem = problem
        self.backoff.record_failure(now)

    def report(self) -> AdapterReport:
        """Return the adapter's entry in the report."""
        return AdapterReport(name=self.adapter.name, state=self.state, problem=self.problem)


class AdapterReconciler:
    """Reconciler that keeps the desired adapters loaded in one engine. Times are in seconds."""

    def __init__(
        self,
        engine: Engine,
        artifacts: Store,
        settings: ServingSettings,
        order: DesiredAdapters,
        clock: Callable[[], float] = time.monotonic,
        use_grant: Callable[[str], None] | None = None,
    ) -> None:
        """`use_grant` receives the grant of each `DesiredAdapters`, which allows `artifacts` to read its adapters."""
        self._engine = engine
        self._probe = AdapterProbe(engine, settings.adapters_dir)
        self._held: frozenset[str] = frozenset()
        """Adapters in the engine at the latest check."""
        self._artifacts = artifacts
        self._settings = settings
        self._order = order
        self._use_grant = use_grant
        self._take_grant(order)
        self._clock = clock
        self._slots = {a.name: ManagedAdapter(a) for a in order.adapters}
        self._unordered: dict[str, ManagedAdapter] = {}
        """Adapters in the engine that are not desired."""
        self._unused: dict[str, float] = {}
        """Folders that no slot needs, each with the time at which it was first found unneeded."""
        self._changed = asyncio.Event()
        self._settled = False
        """True once every desired adapter has been loaded, or has failed to load, since the process started."""
        self._engine_problem: Problem | None = Problem(
            reason=UNREACHABLE, message="the engine has not been queried yet"
        )
        self.metrics = SidecarMetrics()

    @property
    def not_ready(self) -> Problem | None:
        """Reason why the replica must not receive requests, or None if it is ready.

        The replica is not ready while it loads an adapter that it served before or that was desired at its start. An
        adapter that is added later does not make the replica unready.
        """
        if self._engine_problem is not None:
            return self._engine_problem
        for slot in self._slots.values():
            if slot.state is LoadState.loading and (slot.was_loaded or not self._settled):
                return Problem(reason=Reason.ADAPTERS_LOADING, message=f"{slot.adapter.name} is being loaded")
        return None

    def report(self) -> ServingReport:
        """Return the state of this replica's adapters."""
        slots = [*self._slots.values(), *self._unordered.values()]
        return ServingReport(order=self._order, adapters=[slot.report() for slot in slots])

    def _take_grant(self, order: DesiredAdapters) -> None:
        if self._use_grant is not None:
            self._use_grant(order.grant)

    def set_desired(self, order: DesiredAdapters) -> None:
        """Replace the desired adapters. Adapters that failed before are retried immediately."""
        self._take_grant(order)
        kept = {a.name: self._slots.get(a.name) for a in order.adapters}
        slots = {}
        for adapter in order.adapters:
            slot = kept[adapter.name]
            slots[adapter.name] = slot if slot is not None and slot.adapter == adapter else ManagedAdapter(adapter)
            slots[adapter.name].backoff.record_success()
        for name, slot in self._slots.items():
            # The adapter is in the engine or being loaded; the next check finds out.
            if name not in slots and (slot.state is LoadState.loaded or slot.busy):
                self._unordered[name] = ManagedAdapter(slot.adapter, LoadState.unloading, task=slot.task)
        self._order, self._slots = order, slots
        self._unordered = {name: slot for name, slot in self._unordered.items() if name not in slots}
        self._changed.set()

    async def keep(self) -> None:
        """Check the engine and reconcile until cancelled."""
        while True:
            self._changed.clear()
            await self.reconcile_once()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._settings.check_pause)

    async def reconcile_once(self) -> None:
        """Check the engine once. Loads run in their own tasks and trigger the next check when they finish."""
        try:
            names = set(await self._engine.adapters())
        except ProblemError as error:
            if error.status != BUSY:
                self._engine_problem = error.problem
            return
        now = self._clock()
        self._engine_problem = None
        self._held = frozenset(names)
        self.metrics.adapters.set(len(names))
        for name, slot in self._slots.items():
            self._reconcile_adapter(slot, name in names, now)
        await self._unload_others(names, now)
        self._settled = self._settled or all(s.state is not LoadState.loading for s in self._slots.values())
        await self._delete_unused_folders(now)

    async def close(self) -> None:
        """Cancel all operations in progress. Files are kept."""
        slots = [*self._slots.values(), *self._unordered.values()]
        tasks = [slot.task for slot in slots if slot.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reconcile_adapter(self, slot: ManagedAdapter, held: bool, now: float) -> None:
        if held:
            slot.state, slot.problem, slot.was_loaded = LoadState.loaded, None, True
            slot.backoff.record_success()
            return
        if slot.state is LoadState.loaded:
            log.warning("%s is missing in the engine; loading it again", slot.adapter.name)
            slot.state = LoadState.loading
        if not slot.busy and slot.backoff.open(now):
            slot.task = asyncio.create_task(self._load(slot), name=f"load {slot.adapter.name}")

    async def _load(self, slot: ManagedAdapter) -> None:
        started = time.monotonic()
        adapter = slot.adapter
        try:
            limit = self._settings.max_lora_rank
            policy, manifest = await asyncio.to_thread(policy_of, self._artifacts, adapter, limit)
            path = await self._files(adapter).fetch(policy, manifest)
            if not self._held:
                await self._probe.check(path)
            await self._engine.load(adapter.name, str(path))
        except ProblemError as error:
            self._record_failure(slot, error.problem)
        except Exception as error:
            log.exception("could not load %s", adapter.name)
            message = f"{type(error).__name__}: {error}. This is a bug in the sidecar; see its log"
            self._record_failure(slot, Problem(reason=Reason.INTERNAL_ERROR, message=message))
        else:
            self.metrics.loads.labels("ok").inc()
            self.metrics.seconds.observe(time.monotonic() - started)
            log.info("loaded %s in %.2f s", adapter.name, time.monotonic() - started)
        finally:
            self._changed.set()

    def _record_failure(self, slot: ManagedAdapter, problem: Problem) -> None:
        self.metrics.loads.labels(problem.reason).inc()
        log.error("could not load %s: %s: %s", slot.adapter.name, problem.reason, problem.message)
        slot.record_failure(problem, self._clock())
        # An unreachable engine does not mean that the adapter cannot be loaded.
        slot.state = LoadState.loading if problem.reason == UNREACHABLE else LoadState.failed

    async def _unload_others(self, names: set[str], now: float) -> None:
        self._unordered = {name: slot for name, slot in self._unordered.items() if name in names or slot.busy}
        for name in sorted(names - self._slots.keys()):
            slot = self._unordered.setdefault(
                name, ManagedAdapter(ServedAdapter(name=name, uri="", step=0), LoadState.unloading)
            )
            if not slot.backoff.open(now):
                continue
            try:
                await self._engine.unload(name)
            except ProblemError as error:
                log.error("could not unload %s: %s", name, error)
                slot.record_failure(error.problem, now)
            else:
                log.info("unloaded %s", name)
                self.metrics.unloads.inc()
                del self._unordered[name]

    def _files(self, adapter: ServedAdapter) -> PolicyFiles:
        # Use one folder per URI: two runs may have produced the same weights, and one of them may be deleted.
        folder = self._settings.adapters_dir / folder_of(adapter)
        return PolicyFiles(self._artifacts, folder, self._settings.download_deadline, self.metrics)

    async def _delete_unused_folders(self, now: float) -> None:
        needed = {folder_of(slot.adapter) for slot in self._slots.values()}
        there = await asyncio.to_thread(_folders, self._settings.adapters_dir)
        self._unused = {name: self._unused.get(name, now) for name in there - needed}
        for name, since in self._unused.items():
            if now - since >= self._settings.unload_grace:
                await asyncio.to_thread(shutil.rmtree, self._settings.adapters_dir / name, True)


def folder_of(adapter: ServedAdapter) -> str:
    """Return the name of the folder with the adapter's files."""
    return hashlib.sha256(f"{adapter.uri}{adapter.digest or ''}".encode()).hexdigest()[:16]


def _folders(place: Path) -> set[str]:
    names = {path.name for path in place.iterdir() if path.is_dir()} if place.is_dir() else set()
    return names - {PROBE_NAME}
