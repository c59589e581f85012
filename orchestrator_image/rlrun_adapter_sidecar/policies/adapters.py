"""Adapters of one replica: downloaded once, loaded once, confirmed by the engine, and deleted after a delay."""

import asyncio
import time
from collections.abc import Sequence

from rlrun.constants import Reason
from rlrun.protocol.inference import AdapterList
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.service.errors import ProblemError
from typing_extensions import override

from rlrun_adapter_sidecar.engine.adapter_probe import AdapterProbe
from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.engine.vllm_client import Engine
from rlrun_adapter_sidecar.policies.policy_loader import PolicyLoader

CONFIRM_SECONDS = 10.0
CONFIRM_PAUSE = 0.05


class AdapterLoader(PolicyLoader):
    """Loader of adapters. The engine serves several adapters at a time."""

    kind = PolicyKind.adapter
    served = "adapters"

    def __init__(
        self, engine: Engine, files: PolicyFiles, unload_grace: float, probes: asyncio.Lock | None = None
    ) -> None:
        """`unload_grace` is the delay in seconds before an unloaded adapter's files are deleted. `probes` is shared by
        all loaders of the engine.
        """
        super().__init__(engine, files)
        self._probe = AdapterProbe(engine, files.folder, probes)
        self._unload_grace = unload_grace
        self._last_listed: frozenset[str] = frozenset()
        """Names in the engine's latest list."""

    @override
    async def list(self) -> AdapterList:
        return await self._query()

    @override
    async def load(self, policy: PolicyRef) -> AdapterList:
        self._keep_files(policy.name)
        # Query the engine only for adapters that it has listed before, because a busy engine is slow to respond.
        if policy.name in self._last_listed and policy.name in (listed := await self._query()).adapters:
            return listed
        seconds = await self._load_once(policy)
        return AdapterList(adapters=sorted(self._last_listed), load_seconds=seconds)

    @override
    async def unload(self, name: str) -> AdapterList:
        """Unload the adapter and delete its files after `unload_grace`. Raises ProblemError."""
        task = self._loads.get(name)
        if task is not None:
            await asyncio.wait({task})
        await self._engine.unload(name)
        self.metrics.unloads.inc()
        self._keep_files(name)
        self._removals[name] = asyncio.create_task(self._remove_later(name))
        return await self._query()

    @override
    async def _load_into_engine(self, policy: PolicyRef) -> None:
        path = await self._files.fetch(policy)
        if not self._last_listed:
            await self._probe.check(path)
        await self._engine.load(policy.name, str(path))
        ends = time.monotonic() + CONFIRM_SECONDS
        while policy.name not in (await self._query()).adapters:
            if time.monotonic() > ends:
                message = f"the engine accepted {policy.name} but does not list it; check the engine's log"
                raise ProblemError.of(502, Reason.ADAPTER_LOAD_REJECTED, message)
            await asyncio.sleep(CONFIRM_PAUSE)

    async def _query(self) -> AdapterList:
        """Ask the engine for its adapters, record them and return them."""
        return self._record(await self._engine.adapters())

    def _record(self, names: Sequence[str]) -> AdapterList:
        self._last_listed = frozenset(names)
        self.metrics.adapters.set(len(names))
        return AdapterList(adapters=list(names))

    def _keep_files(self, name: str) -> None:
        removal = self._removals.pop(name, None)
        if removal is not None:
            removal.cancel()

    async def _remove_later(self, name: str) -> None:
        await asyncio.sleep(self._unload_grace)
        await self._files.remove(name)
        self._removals.pop(name, None)
