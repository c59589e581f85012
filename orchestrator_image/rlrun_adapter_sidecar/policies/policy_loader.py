"""Loads policies of any kind into the engine of one replica.

A policy's name contains its version and digest and is never reused, so all operations are idempotent: a repeated load
finds the files or the policy in place, and concurrent loads share one task.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from typing import ClassVar

from rlrun.constants import Reason
from rlrun.protocol.inference import AdapterList
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.service.errors import ProblemError

from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.engine.vllm_client import Engine

log = logging.getLogger(__name__)


class PolicyLoader(ABC):
    """Loader that copies policies from S3 through the shared folder into the engine. Times are in seconds.

    `list`, `load` and `unload` raise ProblemError.
    """

    kind: ClassVar[PolicyKind]
    served: ClassVar[str]
    """Text that names the policies of this kind in messages."""

    def __init__(self, engine: Engine, files: PolicyFiles) -> None:
        self.metrics = files.metrics
        self._engine = engine
        self._files = files
        self._loads: dict[str, asyncio.Task[float | None]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        """Scheduled deletions of files, by policy name."""

    @abstractmethod
    async def list(self) -> AdapterList:
        """Ask the engine which policies it serves, and return them."""

    @abstractmethod
    async def load(self, policy: PolicyRef) -> AdapterList:
        """Load the policy, and return once the engine confirms it."""

    @abstractmethod
    async def unload(self, name: str) -> AdapterList:
        """Unload a policy that no group uses, and return the policies that the engine still serves."""

    async def close(self) -> None:
        """Cancel all operations in progress. Files are kept."""
        tasks = [*self._loads.values(), *self._removals.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @abstractmethod
    async def _load_into_engine(self, policy: PolicyRef) -> None:
        """Download the policy, and return once the engine has loaded it."""

    async def _load_once(self, policy: PolicyRef) -> float | None:
        """Load the policy in a task that all callers share. Returns the seconds that the load took, or None if
        the engine already had the policy. Raises ProblemError.
        """
        if policy.kind is not self.kind:
            message = f"{policy.name} is of kind {policy.kind}, but this replica's engine serves {self.served}"
            raise ProblemError.of(422, Reason.POLICY_KIND_WRONG, message)
        task = self._loads.get(policy.name)
        if task is None:
            task = self._loads[policy.name] = asyncio.create_task(self._load(policy))
            task.add_done_callback(lambda _: self._loads.pop(policy.name, None))
        # A caller that disconnects must not cancel a load that others wait for, or leave the engine between two
        # versions.
        return await asyncio.shield(task)

    async def _load(self, policy: PolicyRef) -> float | None:
        started = time.monotonic()
        try:
            await self._load_into_engine(policy)
        except ProblemError as error:
            self.metrics.loads.labels(error.problem.reason).inc()
            log.error("could not load %s: %s", policy.name, error)
            raise
        seconds = time.monotonic() - started
        self.metrics.loads.labels("ok").inc()
        self.metrics.seconds.observe(seconds)
        log.info("loaded %s into the engine in %.2f s", policy.name, seconds)
        return seconds
