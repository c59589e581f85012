"""The decisions of a reconcile as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.schema.run_status import RLRunStatus

Obj = dict[str, Any]


@dataclass(frozen=True)
class Ref:
    """An object to delete; the uid makes sure that nothing younger of the same name is hit."""

    kind: str
    name: str
    uid: str | None = None

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> "Ref":
        """The reference to an object that was observed."""
        return cls(obj["kind"], obj["metadata"]["name"], obj["metadata"].get("uid"))


@dataclass(frozen=True)
class Nudge:
    """An annotation on a pod. It says little to people, but makes the kubelet look at the pod's ConfigMap at once
    instead of within a minute or so.
    """

    pod: str
    uid: str
    digest: str
    """Of what the ConfigMap says now."""


@dataclass(frozen=True)
class Note:
    """A Kubernetes Event to be."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Removal:
    """An artifact that retention removes: the files first, then the object that remembers them."""

    obj: Obj
    """The RLCheckpoint or RLAdapter, in phase Deleting."""
    uri: str


@dataclass(frozen=True)
class LogCopy:
    """A container's log to be kept in S3."""

    pod: str
    container: str
    uri: str
    previous: bool = False
    """Of the container before its newest restart."""


@dataclass(frozen=True)
class Purge:
    """All files of a run in S3, without some folders."""

    root: str
    keep: tuple[str, ...] = ()
    """Uris of folders that stay: deployed adapters."""


@dataclass(frozen=True)
class Plan:
    """What to do, in this order. Every step may be repeated, and the next reconcile mends what a crash left undone."""

    add_finalizer: bool = False
    logs: tuple[LogCopy, ...] = ()
    """Kept as far as it takes no long time; pods go next."""
    status_first: bool = False
    """Whether the status comes before the deletions: it says what nobody can find out again once the pods are gone."""
    deletes: tuple[Ref, ...] = ()
    applies: tuple[Obj, ...] = ()
    nudges: tuple[Nudge, ...] = ()
    artifact_statuses: tuple[Obj, ...] = ()
    status: RLRunStatus | None = None
    """The whole new status; None leaves it as it is."""
    events: tuple[Note, ...] = ()
    removals: tuple[Removal, ...] = ()
    purge: Purge | None = None
    remove_finalizer: bool = False
    delete_run: bool = False
    requeue_after: float | None = None
    """Seconds until somebody should look again even if nothing happens."""
