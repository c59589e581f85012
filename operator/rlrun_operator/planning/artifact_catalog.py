"""Checkpoints and adapters of a run by step: their objects in the cluster and their folders in S3.

The observer builds the catalog once per reconcile, and adds references from other runs if retention may delete
something. Planning and deletion read the catalog.

Retention keeps checkpoints that other runs reference. A run needs the checkpoint in its `spec.checkpointId` until the
run has saved a checkpoint of its own, because until then a restarted trainer starts from the referenced checkpoint
again. A reference counts only if the run may use the checkpoint: both are in the same namespace, or the checkpoint is
shared with the run's namespace.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Literal

from rlrun.api.base.phases import ArtifactPhase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj, artifact_name, is_artifact_ready, ordered_expiry, phase_of
from rlrun.kube.references import split_checkpoint_id
from rlrun.storage.manifest import Manifest, changed_message


def keep_reference(run: Obj) -> Obj:
    """Reduce a run to the parts that `referenced_steps` needs, because runs may be large."""
    metadata, spec = run["metadata"], run.get("spec") or {}
    reference = {"metadata": {"namespace": metadata.get("namespace")}, "spec": {}}
    if spec.get("checkpointId") and needs_start_checkpoint(run):
        reference["spec"] = {"checkpointId": spec["checkpointId"]}
    return reference


def referenced_steps(
    namespace: str, names: Mapping[int, str], objects: Mapping[int, Obj], runs: Iterable[Obj]
) -> set[int]:
    """Return the steps of the checkpoints that any of the `runs` would start from (`needs_start_checkpoint`). `names`
    maps each step to the name of its checkpoint.
    """
    steps = {name: step for step, name in names.items()}
    referenced = set()
    for run in runs:
        checkpoint_id = str((run.get("spec") or {}).get("checkpointId") or "")
        if not checkpoint_id or not needs_start_checkpoint(run):
            continue
        run_namespace = str(run["metadata"].get("namespace") or "")
        owner_namespace, name = split_checkpoint_id(checkpoint_id, run_namespace)
        step = steps.get(name) if owner_namespace == namespace else None
        if step is None:
            continue
        if may_start_from(objects.get(step), namespace, run_namespace):
            referenced.add(step)
    return referenced


def may_start_from(checkpoint: Obj | None, owner_namespace: str, run_namespace: str) -> bool:
    """Return whether runs in `run_namespace` may use the RLCheckpoint in `owner_namespace`. `checkpoint` is None if the
    object does not exist.
    """
    shared = ((checkpoint or {}).get("spec") or {}).get("sharedWith") or []
    return run_namespace == owner_namespace or run_namespace in shared


def needs_start_checkpoint(run: Obj) -> bool:
    """Return whether the run would start from its checkpointId again if its processes restarted now."""
    if run["metadata"].get("deletionTimestamp"):
        return False
    status = RLRunStatus.parse(run.get("status"))
    return not (status.phase is not None and status.phase.finished) and status.last_checkpoint is None


ArtifactObjectKind = Literal["RLCheckpoint", "RLAdapter"]

KEEP_ALL = -1


@dataclass(frozen=True)
class ObservedArtifact:
    """Folder of a checkpoint or an adapter in S3."""

    kind: ArtifactObjectKind
    step: int
    uri: str
    manifest: Manifest | None = None
    """Manifest of the artifact. None during the upload, or if the object is already Ready and the manifest was not read
    again.
    """
    problem: str | None = None
    """Error in a folder that should be complete, or None."""
    digest: str = ""
    """SHA-256 of the manifest. Empty during the upload."""
    written: datetime | None = None
    """Time at which S3 received the manifest with this digest."""
    is_changed: bool = False
    """True if the digest differs from the one in the object."""

    def compare(self, obj: Obj | None) -> "ObservedArtifact":
        """Return this artifact, with `problem` and `is_changed` set if its digest differs from the one in the status of
        `obj`. Returned unchanged if either digest is missing.
        """
        digest = digest_of(obj)
        if not digest or not self.digest or self.digest == digest:
            return self
        return replace(self, problem=f"{changed_message(self.uri, digest, self.digest)}.", is_changed=True)


def digest_of(obj: Obj | None) -> str:
    """Return the digest in the status of an RLCheckpoint or RLAdapter, or an empty string."""
    return str(((obj or {}).get("status") or {}).get("digest") or "")


def _seconds_to_expiry(obj: Obj, now: datetime | None) -> float:
    """Return the seconds until the artifact expires, at most 0 if it has expired. Returns infinity if no valid expiry
    time is set or `now` is None.
    """
    try:
        expires_at = ordered_expiry(obj) or parse_time((obj.get("status") or {}).get("expiresAt"))
        return math.inf if now is None or expires_at is None else (expires_at - now).total_seconds()
    except (TypeError, ValueError):
        return math.inf


@dataclass(frozen=True)
class KindCatalog:
    """Artifacts of one kind, by step."""

    names: Mapping[int, str] = field(default_factory=dict)
    """Names of the objects, including those not created yet."""
    objects: Mapping[int, Obj] = field(default_factory=dict)
    folders: Mapping[int, ObservedArtifact] = field(default_factory=dict)
    keep: int = KEEP_ALL
    """Number of newest artifacts that retention keeps. -1 keeps all."""
    referenced: frozenset[int] = frozenset()
    """Steps whose checkpoints other runs start from."""
    overdue: frozenset[int] = frozenset()
    """Steps whose expiry time has passed."""
    ordered: frozenset[int] = frozenset()
    """Overdue steps whose expiry time was set by a user in `spec.expiresAt`."""
    needs_newest: bool = True
    """True if a restarted run would continue from the newest artifact."""

    @cached_property
    def deployed(self) -> frozenset[int]:
        """Steps of adapters whose `spec.deployed` is true."""
        return frozenset(step for step, obj in self.objects.items() if obj["spec"].get("deployed"))

    @cached_property
    def complete(self) -> frozenset[int]:
        """Steps whose files are all in S3."""
        return frozenset(
            step
            for step, folder in self.folders.items()
            if folder.problem is None and (folder.manifest is not None or is_artifact_ready(self.objects.get(step)))
        )

    @cached_property
    def deleting_steps(self) -> frozenset[int]:
        """Steps whose objects are in phase Deleting."""
        return frozenset(step for step, obj in self.objects.items() if phase_of(obj) == ArtifactPhase.deleting.value)

    @cached_property
    def surplus_steps(self) -> frozenset[int]:
        """Steps to delete: expired steps, old incomplete steps, and remains of unfinished deletions."""
        newest = frozenset({max(self.complete, default=0)})
        broken = {step for step, folder in self.folders.items() if step not in self.complete and folder.problem}
        due = (self.overdue & self.complete) - (newest if self.needs_newest else newest - self.ordered)
        due = (due | (self.ordered & broken)) - self.deployed - self.referenced
        # Artifacts that are deleted anyway do not count toward `keep`.
        expired = due | set(expired_steps(self.complete - due, self.keep, self.deployed, self.referenced))
        kept = self.complete - expired - self.deployed
        older = {step for step in broken if 0 < self.keep <= len(kept) and step < min(kept)}
        remains = {step for step in self.deleting_steps if step in self.folders and step not in self.complete}
        return expired | (older - self.deployed - self.referenced) | remains


@dataclass(frozen=True)
class ArtifactCatalog:
    """All artifacts of one run."""

    checkpoints: KindCatalog = field(default_factory=KindCatalog)
    adapters: KindCatalog = field(default_factory=KindCatalog)
    is_listed: bool = False
    """True if S3 was listed. Otherwise nothing may be deleted."""
    has_references: bool = False
    """True if the checkpoints that other runs start from are known."""
    next_expiry: float | None = None
    """Seconds until the next artifact expires, or None if none will."""

    @classmethod
    def build(
        cls,
        run: Obj,
        objects: Sequence[Obj],
        folders: Iterable[ObservedArtifact] | None,
        spec: RLRunSpec | None,
        now: datetime | None = None,
    ) -> "ArtifactCatalog":
        """Index the objects and the folders of `run`. If `spec` is None, retention keeps everything; if `now` is None,
        no artifact is overdue.
        """
        listed = tuple(folders or ())

        def of_kind(kind: ArtifactObjectKind, keep: int) -> KindCatalog:
            own = {int(o["spec"]["step"]): o for o in objects if o["kind"] == kind}
            by_step = {folder.step: folder.compare(own.get(folder.step)) for folder in listed if folder.kind == kind}
            metadata = run["metadata"]
            names = {step: artifact_name(metadata["name"], metadata["uid"], step) for step in by_step}
            names |= {step: str(obj["metadata"]["name"]) for step, obj in own.items()}
            left = {step: math.inf if spec is None else _seconds_to_expiry(obj, now) for step, obj in own.items()}
            times.extend(seconds for seconds in left.values() if 0 < seconds < math.inf)
            overdue = frozenset(step for step, seconds in left.items() if seconds <= 0)
            ordered = frozenset(step for step in overdue if ordered_expiry(own[step]) is not None)
            needs_newest = kind == "RLCheckpoint" and not has_ended
            return KindCatalog(names, own, by_step, keep, overdue=overdue, ordered=ordered, needs_newest=needs_newest)

        times: list[float] = []
        phase = RLRunStatus.parse(run.get("status")).phase
        has_ended = phase is not None and phase.finished

        return cls(
            checkpoints=of_kind("RLCheckpoint", KEEP_ALL if spec is None else spec.checkpoints.keep_cloud),
            adapters=of_kind("RLAdapter", KEEP_ALL if spec is None else spec.adapters.keep_last),
            is_listed=folders is not None,
            next_expiry=min(times, default=None),
        )

    @property
    def has_deletions(self) -> bool:
        """True if retention may delete an artifact. References from all runs must then be known."""
        kinds = (self.checkpoints, self.adapters)
        return self.is_listed and any(kind.surplus_steps or kind.deleting_steps for kind in kinds)

    def with_references(self, namespace: str, all_runs: Iterable[Obj]) -> "ArtifactCatalog":
        """Return the catalog with the checkpoints that `all_runs` reference. `namespace` is this run's namespace."""
        referenced = referenced_steps(namespace, self.checkpoints.names, self.checkpoints.objects, all_runs)
        checkpoints = replace(self.checkpoints, referenced=frozenset(referenced))
        return replace(self, checkpoints=checkpoints, has_references=True)

    @property
    def objects(self) -> list[Obj]:
        """All RLCheckpoints and RLAdapters of the run."""
        return [*self.checkpoints.objects.values(), *self.adapters.objects.values()]

    @property
    def objects_in_use(self) -> list[Obj]:
        """Objects of deployed adapters and of checkpoints that other runs start from."""
        deployed = [self.adapters.objects[step] for step in sorted(self.adapters.deployed)]
        referenced = sorted(self.checkpoints.referenced & self.checkpoints.objects.keys())
        return [*deployed, *(self.checkpoints.objects[step] for step in referenced)]


def expired_steps(
    ready: Collection[int], keep: int, deployed: Collection[int] = (), referenced: Collection[int] = ()
) -> list[int]:
    """Return the steps to delete, oldest first: all but the newest `keep`, or none if `keep` is -1.

    Deployed steps are never deleted and do not count toward `keep`. Steps that another run starts from are never
    deleted either. The newest step is always kept, because a restarted run continues from it.
    """
    if keep < 0:
        return []
    counted = sorted(set(ready) - set(deployed))
    return [step for step in counted[: -max(keep, 1)] if step not in set(referenced)]
