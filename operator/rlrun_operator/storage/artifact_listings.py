"""Cache of S3 listings of runs' checkpoints and adapters, which are refreshed when files may have been written.

S3 sends no events. A listing is reused while no upload is due, the run's attempt, pods and reports have not changed,
and the listing is younger than `artifactSweepSeconds`. After `forget`, the next reconcile lists S3,
unless the run's listing just failed.

A run that has too many files is listed again after `artifactSweepSeconds`. If a listing exceeded its time limit, the
run is listed again after SLOW_SECONDS, because S3 may have been slow. Nothing that the run does leads to an earlier
listing, because each listing occupies a thread for up to 20 seconds.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rlrun.api.run_status import RLRunStatus
from rlrun.kube.objects import Obj, is_artifact_ready
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem
from rlrun.storage.store import StoreError

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.artifact_catalog import ArtifactCatalog, ObservedArtifact, digest_of
from rlrun_operator.planning.artifacts import UploadSchedule
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.resources.platform import run_layout
from rlrun_operator.runtime.metrics import S3_LISTINGS
from rlrun_operator.storage.artifact_store import ArtifactStore, ReadyArtifact, TooManyObjects
from rlrun_operator.storage.store_call import CallTooLong

SLOW_SECONDS = 60.0
"""Seconds until a run whose listing exceeded its time limit is listed again. Shorter than the 120 seconds for which an
ended run waits for its last listing.
"""


@dataclass(frozen=True)
class ArtifactListing:
    """Folders of a run in S3."""

    folders: list[ObservedArtifact] | None = None
    """Folders of checkpoints and adapters, or None if they are unknown."""
    problem: Problem | None = None
    is_kept: bool = False
    """True if the listing is from an earlier reconcile."""


@dataclass(frozen=True)
class ListingRequest:
    """State of a run in a reconcile, which determines where its files are and whether new files may exist."""

    run: Obj
    status: RLRunStatus
    schedule: UploadSchedule
    variables: dict[str, str]
    """AWS_* variables with the S3 credentials."""
    objects: list[Obj]
    """RLCheckpoints and RLAdapters of the run."""
    pods: Sequence[Obj]
    report: RunStatus | None
    """Status of the orchestrator, if it responded."""
    is_trainer_writing: bool = False
    """True if the trainer of the run's shared pool may still write, so that S3 must be listed again afterwards."""
    saves: int | None = None
    """Counter of the artifacts that the trainer has saved for a client's program (`ClientActivity.saves`), if known."""

    @property
    def key(self) -> RunKey:
        """Namespace and name of the run."""
        return RunKey(self.run["metadata"]["namespace"], self.run["metadata"]["name"])

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        """Facts that change when an unscheduled upload completes, or when an upload fails or is dropped."""
        report = self.report
        said = None if report is None else (report.phase, report.problem, report.waiting_for, tuple(report.warnings))
        phases = [(str(p["metadata"].get("uid")), str((p.get("status") or {}).get("phase"))) for p in self.pods]
        # A pod that has not started has uploaded nothing.
        pods = sorted(pod for pod in phases if pod[1] != "Pending")
        uid, status = self.run["metadata"]["uid"], self.status
        return uid, status.phase, status.attempt, tuple(pods), said, self.is_trainer_writing, self.saves

    @property
    def ready(self) -> dict[tuple[str, int], ReadyArtifact]:
        """Artifacts with Ready objects, by kind and step."""
        return {
            (o["kind"], int(o["spec"]["step"])): ReadyArtifact(int(o["status"]["sizeBytes"]), digest_of(o))
            for o in self.objects
            if is_artifact_ready(o) and "sizeBytes" in o["status"]
        }

    @property
    def step(self) -> int:
        """Number of trained steps."""
        if self.report is not None:
            return self.report.step
        return 0 if self.status.progress is None else self.status.progress.step


@dataclass(frozen=True)
class _Kept:
    folders: list[ObservedArtifact]
    ready: dict[tuple[str, int], ReadyArtifact]
    fingerprint: tuple[Any, ...]
    step: int
    until: float


@dataclass(frozen=True)
class _Failed:
    """Failed listing: the run has too many files, or the listing exceeded its time limit."""

    uid: str
    problem: Problem
    until: float


class ArtifactListings:
    """Listings by run. Use from one event loop only."""

    def __init__(
        self,
        artifacts: ArtifactStore,
        settings: OperatorSettings,
        clock: Callable[[], float],
        spread: Callable[[], float] | None = None,
    ) -> None:
        """`spread` returns a random factor for `artifactSweepSeconds`."""
        self._artifacts = artifacts
        self._settings = settings
        self._clock = clock
        self._spread = spread or (lambda: random.uniform(0.8, 1.2))
        self._kept: dict[RunKey, _Kept] = {}
        self._failed: dict[RunKey, _Failed] = {}
        self._written: dict[RunKey, dict[tuple[str, int, str], datetime | None]] = {}
        """Times at which S3 received the manifests of the latest listing, by kind, step and digest."""

    def forget(self, key: RunKey) -> None:
        """Make the next reconcile of the run list S3 and read the manifests again, unless its listing just failed."""
        self._kept.pop(key, None)
        self._written.pop(key, None)

    async def list(self, request: ListingRequest, *, is_fresh: bool = False) -> ArtifactListing:
        """Return the folders of the run, from S3 or from the last listing. If `is_fresh`, S3 is listed unless a listing
        of the run just failed.
        """
        failed = self._failed.get(request.key)
        if failed is not None and failed.uid == request.run["metadata"]["uid"] and self._clock() < failed.until:
            return ArtifactListing(problem=failed.problem, is_kept=True)
        kept = self._kept.get(request.key)
        if kept is not None and not is_fresh and self._is_valid(kept, request):
            return ArtifactListing(kept.folders, is_kept=True)
        self._kept.pop(request.key, None)
        metadata, ready, written = request.run["metadata"], request.ready, self._written.pop(request.key, {})
        compared = {
            (kind, step): replace(known, written=written.get((kind, step, known.digest)))
            for (kind, step), known in ready.items()
        }
        layout = run_layout(self._settings, metadata["namespace"], metadata["uid"])
        S3_LISTINGS.inc()
        try:
            folders = await self._artifacts.list(request.variables, layout, compared)
        except TooManyObjects as error:
            return self._on_failure(request, error, self._settings.artifact_sweep_seconds)
        except CallTooLong as error:
            return self._on_failure(request, error, min(SLOW_SECONDS, self._settings.artifact_sweep_seconds))
        except StoreError as error:
            return ArtifactListing(problem=error.problem)
        until = self._clock() + self._settings.artifact_sweep_seconds * self._spread()
        self._written[request.key] = {(f.kind, f.step, f.digest): f.written for f in folders if f.digest}
        self._kept[request.key] = _Kept(folders, ready, request.fingerprint, request.step, until)
        return ArtifactListing(folders)

    def _on_failure(self, request: ListingRequest, error: StoreError, seconds: float) -> ArtifactListing:
        now = self._clock()
        until = now + seconds * self._spread()
        message = f"{error}. The operator lists the run's artifacts again after about {seconds:.0f} s."
        problem = Problem(reason=error.reason, message=message)
        # No other event removes the failures of deleted runs.
        self._failed = {key: failed for key, failed in self._failed.items() if now < failed.until}
        self._failed[request.key] = _Failed(request.run["metadata"]["uid"], problem, until)
        return ArtifactListing(problem=problem)

    def _is_valid(self, kept: _Kept, request: ListingRequest) -> bool:
        if self._clock() >= kept.until or kept.fingerprint != request.fingerprint:
            return False
        if request.step < kept.step:
            # The run repeats steps and replaces their artifacts.
            return False
        if not kept.ready.items() <= request.ready.items():
            # An object was deleted, and the listing has no manifest to recreate it.
            return False
        catalog = ArtifactCatalog.build(request.run, request.objects, kept.folders, None)
        return not request.schedule.is_upload_due(catalog, request.step)
