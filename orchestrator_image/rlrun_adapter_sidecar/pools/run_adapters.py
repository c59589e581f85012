"""Adapters of one run in a shared pool, and the limits on what the run may load."""

import asyncio
from urllib.parse import urlsplit

from rlrun.constants import CONFLICT, Reason
from rlrun.protocol.inference import AdapterList, LoadRequest
from rlrun.protocol.policy import NAME, PolicyRef
from rlrun.protocol.shared_pool import PooledRun
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri
from typing_extensions import override

from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.policies.adapters import AdapterLoader
from rlrun_adapter_sidecar.pools.run_engine import RunEngine

MAX_POLICIES = 160
"""Maximum number of a run's policies on disk. A run uses at most 68 (`RLRunSpec.policies_in_use`). The rest are
unloaded policies, whose files stay for `unload_grace`, and policies that a restarted orchestrator's predecessor loaded.
"""
MAX_LOADS = 2
"""Maximum number of concurrent loads of a run. An orchestrator requests one load at a time from each replica."""


class RunAdapters(AdapterLoader):
    """Loader of one run's adapters. `run` is the run's entry in the current `PoolOrder`."""

    def __init__(
        self,
        run: PooledRun,
        engine: RunEngine,
        files: PolicyFiles,
        unload_grace: float,
        probes: asyncio.Lock,
        trainer_headers: dict[str, str],
    ) -> None:
        """`trainer_headers` are the headers of the fallback's requests, which `use_token` sets. `unload_grace` (in
        seconds) and `probes` have the same meaning as in AdapterLoader.
        """
        super().__init__(engine, files, unload_grace, probes)
        self.run = run
        self._run_engine = engine
        self._trainer_headers = trainer_headers
        self._load_slots = asyncio.Semaphore(MAX_LOADS)

    @property
    def listed(self) -> int:
        """Number of the run's adapters in the engine when it was last queried."""
        return len(self._last_listed)

    def use_token(self, authorization: str) -> None:
        """Use the `Authorization` header of the run's request in requests to the run's trainer."""
        self._trainer_headers["Authorization"] = authorization

    @override
    async def list(self) -> AdapterList:
        """Return the run's adapters, as of at most LISTING_SECONDS ago. Raises ProblemError."""
        return self._record(await self._run_engine.listed_adapters())

    @override
    async def load(self, policy: PolicyRef) -> AdapterList:
        """Load a policy of the run. In addition to the errors of the base class, raises ProblemError:
        `StorageAccessDenied` (403) for files outside the run's folders; `InvalidRequest` (422) for an invalid URI, or a
        fallback that is not this policy at a trainer; `AdapterDownloadFailed`, with status 409 if the run has
        MAX_POLICIES other policies or no space, and with 422 if the policy is too large.
        """
        check_source(policy, self.run)
        try:
            if len(self._on_disk() | {policy.name}) > MAX_POLICIES:
                message = (
                    f"the run has {MAX_POLICIES} policies on this engine, which is the maximum; unload some, and retry "
                    f"after {self._unload_grace:g} s, when their files are deleted"
                )
                raise ProblemError.of(CONFLICT, Reason.ADAPTER_DOWNLOAD_FAILED, message)
            return await super().load(policy)
        except ProblemError as error:
            if error.status == CONFLICT:
                await self._remove_unlisted_later()
            raise

    @override
    async def _load_into_engine(self, policy: PolicyRef) -> None:
        async with self._load_slots:
            await super()._load_into_engine(policy)

    def _on_disk(self) -> set[str]:
        """Return the names of policies that are on disk or being downloaded."""
        return {path.name for path in self._files.folder.iterdir() if NAME.fullmatch(path.name)} | self._loads.keys()

    async def _remove_unlisted_later(self) -> None:
        """Schedule the deletion of files that no unload will delete: files of failed loads, and files that a former
        engine or sidecar left.
        """
        unused = self._on_disk() - self._loads.keys() - self._removals.keys()
        listed = set((await self._query()).adapters)
        for name in unused - listed - self._loads.keys() - self._removals.keys():
            self._removals[name] = asyncio.create_task(self._remove_later(name))


def check_source(policy: PolicyRef, run: PooledRun) -> None:
    """Raise ProblemError if the policy's files are not the run's own."""
    try:
        uri, folders = S3Uri.parse(policy.uri), [S3Uri.parse(folder) for folder in run.folders]
    except ValueError as error:
        raise ProblemError.of(422, Reason.INVALID_REQUEST, str(error)) from error
    segments = uri.key.split("/")
    is_inside = any(uri.bucket == folder.bucket and uri.key.startswith(f"{folder.key}/") for folder in folders)
    if not is_inside or not {"", ".", ".."}.isdisjoint(segments):
        message = f"{policy.uri} is not below {' or '.join(run.folders)}, from which this run may load policies"
        raise ProblemError.of(403, Reason.STORAGE_ACCESS_DENIED, message)
    if isinstance(policy, LoadRequest) and policy.fallback is not None:
        url = urlsplit(policy.fallback)
        path = f"/sessions/{run.uid}/policies/{policy.name}"
        # A fixed path, without a query that would absorb file names, lets a run request nothing else in the network.
        if policy.fallback != f"{url.scheme}://{url.netloc}{path}" or not url.hostname or "@" in url.netloc:
            message = f"the fallback {policy.fallback} is not the URL of this policy at a trainer: http://HOST{path}"
            raise ProblemError.of(422, Reason.INVALID_REQUEST, message)
