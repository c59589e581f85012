"""Publishes policy versions to S3. A version is announced only once it is complete, and only the newest are kept.

While S3 is unreachable, the trainer serves the newest versions itself, and training continues. One background task
retries the upload, so that later steps do not wait for S3. Policies of client programs are kept only in S3 (`store`).
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import SessionSpec
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest, weights_digest
from rlrun.storage.store import Store, StoreError, Unreachable, build_manifest

from rlrun_trainer.artifacts.artifact_files import Files, source_of
from rlrun_trainer.artifacts.policy_cache import CachedPolicy, PolicyCache

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
PATIENCE_BYTES = 10e6
"""Minimum upload rate in bytes per second. A slower S3 counts as unreachable."""
FIRST_WAIT = 1.0
LONGEST_WAIT = 15.0


def patience(size: int) -> float:
    """Return how many seconds a step waits for an upload of `size` bytes."""
    return PATIENCE_SECONDS + size / PATIENCE_BYTES


def manifest_facts(spec: SessionSpec) -> dict[str, Any]:
    """Return the fields of an artifact's manifest that describe the run."""
    return {
        "run_name": spec.run_name,
        "run_uid": spec.run_uid,
        "namespace": spec.namespace,
        "model": spec.model,
    }


def adapter_details(spec: SessionSpec, policy_version: int, reward: float | None) -> dict[str, Any]:
    """Return the details in an artifact's manifest that describe the adapter or the weights."""
    details: dict[str, Any] = {"model": spec.model, "kind": spec.kind.value, "policy_version": policy_version}
    if spec.kind is PolicyKind.adapter:
        details |= {
            "rank": spec.lora.rank,
            "alpha": spec.lora_alpha,
            "target_modules": list(spec.lora.target_modules),
        }
    return details if reward is None else details | {"reward": reward}


class Publisher:
    """Publisher of one session's policies. Runs on the event loop and calls S3 from threads."""

    def __init__(self, store: Store, spec: SessionSpec, keep: int, published: list[str]) -> None:
        """`published` has the versions in S3, oldest first.

        Versions of an earlier trainer process count as older than all versions of this process, because version numbers
        repeat after a rewind.
        """
        self.problem: Problem | None = None
        """Reason why policies do not reach S3, or None while they do."""
        self.on_return: Callable[[], None] = lambda: None
        """Callback that is called when S3 is reachable again."""
        self._store = store
        self._spec = spec
        self._layout = RunLayout(S3Uri.parse(spec.run_uri))
        self._keep = keep
        self._published = published
        self._shelf = PolicyCache()
        self._wanted: CachedPolicy | None = None
        """Newest policy that is not in S3 yet."""
        self._under_way: CachedPolicy | None = None
        self._outcome: asyncio.Future[StoreError | None] | None = None
        """Result of the upload of `_wanted`. The future's value is None once S3 has the policy."""
        self._worker: asyncio.Task[None] | None = None
        self._pruning: asyncio.Task[None] | None = None
        self._storing = asyncio.Lock()

    async def publish(self, version: int, files: Files) -> PolicyRef:
        """Publish the version. On return it is complete in S3 or, if S3 is unreachable, cached in this trainer.

        The publisher takes ownership of the files. It waits at most `patience` seconds for S3, and not at all while S3
        is known to be unreachable. In both cases the policy is uploaded later, unless a newer version replaces it.
        Raises StoreError if S3 rejects the policy; call it again to retry.
        """
        policy = await self._describe(version, files)
        self._shelf.put(policy, self._under_way)
        self._wanted = policy
        self._outcome = outcome = asyncio.get_running_loop().create_future()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        if self.problem is None:
            size = policy.manifest.size
            await asyncio.wait({outcome}, timeout=patience(size))
            if not outcome.done():
                self._away(f"the upload of {size} bytes did not finish within {patience(size):.0f} s")
        error = outcome.result() if outcome.done() else None
        if error is not None and not isinstance(error, Unreachable):
            raise error
        return policy.ref

    async def store(self, version: int, files: Files) -> PolicyRef:
        """Upload the version, and return when it is complete in S3. While S3 is unreachable, the upload is retried
        until the caller cancels it. One version is uploaded at a time. Raises StoreError if S3 rejects the version.
        """
        policy, failures = await self._describe(version, files), 0
        async with self._storing:
            self.problem = None
            while True:
                try:
                    await self._upload(policy)
                except StoreError as error:
                    message = f"{policy.ref.name} could not be stored: {error.problem.message}"
                    self.problem = Problem(reason=error.problem.reason, message=message)
                    if not isinstance(error, Unreachable):
                        raise
                    log.warning("%s", message)
                    failures += 1
                    await asyncio.sleep(_pause(failures))
                else:
                    self.problem = None
                    self._on_stored(policy)
                    return policy.ref

    def file(self, policy: str, file: str) -> bytes | Path | None:
        """Return a file of one of the newest policies, or None if it is not cached."""
        return self._shelf.file(policy, file)

    async def close(self) -> None:
        """Stop publishing, and drop policies that are not in S3 yet. Checkpoints contain their weights."""
        tasks = [task for task in (self._worker, self._pruning) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._shelf.clear()

    async def _work(self) -> None:
        failures = 0
        while (policy := self._wanted) is not None:
            outcome = self._outcome
            assert outcome is not None
            self._under_way = policy
            error: StoreError | None = None
            try:
                await self._upload(policy)
            except StoreError as failure:
                error = failure
            except Exception as failure:
                log.exception("Could not publish %s", policy.ref.name)
                error = StoreError(f"{policy.ref.name} was not published: {type(failure).__name__}: {failure}")
            self._under_way = None
            if not outcome.done():
                outcome.set_result(error)
            if isinstance(error, Unreachable):
                failures += 1
                self._away(error.problem.message)
                await asyncio.sleep(_pause(failures))
                continue
            if self._wanted is policy:
                self._wanted = None
            failures = 0
            self._back()
            if error is None:
                self._on_stored(policy)

    async def _describe(self, version: int, files: Files) -> CachedPolicy:
        manifest = await asyncio.to_thread(build_manifest, source_of(files), self._facts(version))
        digest = weights_digest(manifest.files, self._spec.kind)
        assert digest is not None
        uri = self._layout.policy(version, digest)
        ref = PolicyRef(version=version, digest=digest, uri=str(uri), kind=self._spec.kind)
        return CachedPolicy(ref, uri, manifest, files)

    async def _upload(self, policy: CachedPolicy) -> None:
        """Upload the version. Raises StoreError.

        After a rewind, a version may have the weights, and thus the folder, of an old one, which must not be deleted
        from now on.
        """
        name = _folder_name(policy)
        if self._pruning is not None and self._published[:1] == [name]:
            await asyncio.wait({self._pruning})
        if name in self._published:
            self._published.remove(name)
            self._published.append(name)
        await asyncio.to_thread(self._store.upload, source_of(policy.files), policy.uri, policy.manifest)

    def _on_stored(self, policy: CachedPolicy) -> None:
        """Record a version that is complete in S3, and delete the oldest versions in the background."""
        name = _folder_name(policy)
        self._published = [n for n in self._published if n != name] + [name]
        if self._pruning is None or self._pruning.done():
            self._pruning = asyncio.create_task(self._prune())

    async def _prune(self) -> None:
        # A version that is stored during a deletion counts, too.
        while len(self._published) > self._keep:
            name = self._published[0]
            try:
                await asyncio.to_thread(self._store.delete_prefix, self._layout.root / "policy" / name)
            except StoreError as error:
                # Retried after the next publication.
                log.warning("Could not prune policy %s: %s", name, error)
                return
            self._published.remove(name)

    def _away(self, why: str) -> None:
        if self.problem is None:
            log.warning("S3 is unreachable; engines load policies from this trainer: %s", why)
        self.problem = Problem(
            reason=Unreachable.reason,
            message=f"S3 is unreachable: {why.rstrip('.')}. Until it is reachable, engines load policies from the "
            "trainer, and no checkpoint is saved.",
        )

    def _back(self) -> None:
        if self.problem is not None:
            log.info("S3 is reachable again")
            self.problem = None
            self.on_return()

    def _facts(self, version: int) -> Manifest:
        return Manifest(
            kind=ArtifactKind.policy,
            files=[],
            created_at=datetime.now(UTC),
            **manifest_facts(self._spec),
            step=version,
            policy_version=version,
            details=adapter_details(self._spec, version, None),
        )


def _folder_name(policy: CachedPolicy) -> str:
    return policy.uri.key.rsplit("/", 1)[-1]


def _pause(failures: int) -> float:
    """Return the seconds to wait after consecutive failures."""
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures - 1, 10))
