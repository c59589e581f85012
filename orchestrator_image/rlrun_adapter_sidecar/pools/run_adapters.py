"""Adapters of one run in a shared pool, with what the run may load."""

import asyncio
from urllib.parse import urlsplit

from rlrun.constants import Reason
from rlrun.protocol.inference import AdapterList, LoadRequest
from rlrun.protocol.policy import NAME, PolicyRef
from rlrun.protocol.shared_pool import PooledRun
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri
from typing_extensions import override

from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.policies.adapters import AdapterLoader
from rlrun_adapter_sidecar.pools.run_engine import RunEngine

MAX_POLICIES = 80
"""Maximum number of a run's policies on disk. The largest `RLRunSpec.policies_in_use` is 68. A restarted orchestrator
loads its first policies before it unloads those of its predecessor.
"""
MAX_LOADS = 2
"""Maximum number of concurrent loads of a run. An orchestrator sends one at a time to each replica."""


class RunAdapters(AdapterLoader):
    """Loader of one run's adapters. `run` is the run's latest entry in the order."""

    def __init__(
        self,
        run: PooledRun,
        engine: RunEngine,
        files: PolicyFiles,
        unload_grace: float,
        trainer_headers: dict[str, str],
    ) -> None:
        """`trainer_headers` are the headers of the fallback's requests, which `use_token` sets. `unload_grace` is in
        seconds, as in AdapterLoader.
        """
        super().__init__(engine, files, unload_grace)
        self.run = run
        self._trainer_headers = trainer_headers
        self._load_slots = asyncio.Semaphore(MAX_LOADS)

    @property
    def listed(self) -> int:
        """Number of the run's adapters in the engine when it was last queried."""
        return len(self._last_listed)

    def use_token(self, authorization: str) -> None:
        """Send this `Authorization`, which the run's request had, to the run's trainer."""
        self._trainer_headers["Authorization"] = authorization

    @override
    async def load(self, policy: PolicyRef) -> AdapterList:
        """Load a policy of the run. Raises ProblemError: as AdapterLoader does; `StorageAccessDenied` (403) for files
        of another run; `InvalidRequest` (422) for a fallback that is not the run's; `AdapterLoadRejected` (409) if the
        run has MAX_POLICIES others.
        """
        check_source(policy, self.run)
        if len(self._on_disk() | {policy.name}) > MAX_POLICIES:
            await self._delete_unloaded()
            if len(self._on_disk() | {policy.name}) > MAX_POLICIES:
                message = f"the run has {MAX_POLICIES} policies on this engine, which is the maximum; unload some first"
                raise ProblemError.of(409, Reason.ADAPTER_LOAD_REJECTED, message)
        return await super().load(policy)

    @override
    async def _load_into_engine(self, policy: PolicyRef) -> None:
        async with self._load_slots:
            await super()._load_into_engine(policy)

    def _on_disk(self) -> set[str]:
        """Return the names of policies that are on disk or being downloaded."""
        return {path.name for path in self._files.folder.iterdir() if NAME.fullmatch(path.name)} | self._loads.keys()

    async def _delete_unloaded(self) -> None:
        """Delete files that wait for the end of `unload_grace`, or that a restart of the sidecar left behind."""
        listed = set((await self.list()).adapters)
        for name in self._on_disk() - listed:
            if name not in self._loads:
                self._keep_files(name)
                await self._files.remove(name)


def check_source(policy: PolicyRef, run: PooledRun) -> None:
    """Raise ProblemError if the policy's files are not the run's own."""
    try:
        uri, folder = S3Uri.parse(policy.uri), S3Uri.parse(run.policies)
    except ValueError as error:
        raise ProblemError.of(422, Reason.INVALID_REQUEST, str(error)) from error
    segments = uri.key.split("/")
    inside = uri.bucket == folder.bucket and uri.key.startswith(f"{folder.key}/")
    if not inside or not {"", ".", ".."}.isdisjoint(segments):
        message = f"{policy.uri} is not below {folder}, from which this run may load policies"
        raise ProblemError.of(403, Reason.STORAGE_ACCESS_DENIED, message)
    if isinstance(policy, LoadRequest) and policy.fallback is not None:
        url = urlsplit(policy.fallback)
        path = f"/sessions/{run.uid}/policies/{policy.name}"
        # A fixed path, without a query that would absorb file names, lets a run request nothing else in the network.
        if policy.fallback != f"{url.scheme}://{url.netloc}{path}" or not url.hostname or "@" in url.netloc:
            message = f"the fallback {policy.fallback} is not the URL of this policy at a trainer: its path is {path}"
            raise ProblemError.of(422, Reason.INVALID_REQUEST, message)
