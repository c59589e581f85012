"""The oracle is tested with planted bugs: each one is a change of the operator or of the store that a sample of the
unit level must report as an invariant that does not hold.

A bug that only makes a scenario hang or raise is not enough: the oracle has to say what was violated. The sample has
every kind of scenario once and survives without a bug.
"""

import asyncio
import copy
import fnmatch
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from unittest.mock import patch

from rlrun.api.base.phases import Phase
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun.storage.store import Store, build_manifest
from rlrun_operator.controller import reconciler
from rlrun_operator.controller.applier import Applier
from rlrun_operator.planning import (
    artifact_catalog,
    artifacts,
    beginning,
    children,
    deletion,
    ending,
    pod_failures,
    restarts,
    running,
)
from rlrun_operator.planning import plan_run as planner
from rlrun_operator.planning.actions import Plan
from rlrun_operator.planning.artifact_catalog import ArtifactCatalog
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.plan_run import PlanBuilder
from rlrun_operator.resources import children as builders
from rlrun_operator.storage import artifact_store

from tests.chaos.runner import run_one
from tests.chaos.scenario import Outcome, Scenario
from tests.chaos.unit import kills, names, pods, storms, uploads
from tests.chaos.unit.faults import CrashAt
from tests.chaos.unit.life import MAX_STEPS
from tests.support.clocks import START

SAMPLE = (
    "undisturbed/*",
    "retention-beside-a-warm-start/keep-1",
    "trainer-dies-in-an-upload/after-write-00",
    "trainer-dies-in-an-upload/after-write-01",
    "pod-dies-trainer/crash-0",
    "pod-dies-inference/delete-0",
    "pods-end-late/8-ticks",
    "s3-500-before-each-call-of-retention/*",
)


@dataclass(frozen=True)
class Bug:
    """A mistake that the operator or the store could make."""

    name: str
    plant: Callable[[], AbstractContextManager[Any]]
    says: str
    """Part of the violation by which the oracle has to report it."""
    first: str = ""
    """Pattern of the scenarios of the sample that are played first, because most others survive this bug."""


@dataclass(frozen=True)
class Verdict:
    """Result of the sample with one planted bug."""

    bug: Bug
    scenario: str = ""
    """The first that reported the bug; empty if all survived."""
    detail: str = ""

    @property
    def found(self) -> bool:
        """True if the oracle reported the violation that the bug causes."""
        return bool(self.scenario) and self.bug.says in self.detail


def sample() -> list[Scenario]:
    """The scenarios that look for bugs, the ones that find most first. Build it before a bug is planted."""
    every = [
        *kills.undisturbed_scenarios(),
        *names.scenarios(),
        *pods.scenarios(0),
        *storms.scenarios(0),
        *uploads.scenarios(),
    ]
    picked = [s for pattern in SAMPLE for s in every if fnmatch.fnmatchcase(s.name, pattern)]
    return [*picked, *_kills_at_deletions()]


def _kills_at_deletions() -> list[Scenario]:
    """The operator dies after a deletion, or between a status and deletions: what it has not written is lost.

    A bug may move the calls of a reconcile, so all calls between a status and the deletions after it are picked.
    """
    calls = asyncio.run(kills.undisturbed("delete")).gate.calls
    first = {(c.tick, c.name): c.index for c in reversed(calls) if c.name in ("delete", "patch", "delete_objects")}
    picked = set(first.values())
    for tick in {c.tick for c in calls}:
        statuses = [c.index for c in calls if c.tick == tick and c.name == "apply_status"]
        deletions = [c.index for c in calls if c.tick == tick and c.name == "delete"]
        if statuses and deletions:
            picked |= set(range(min(statuses), max(deletions) + 1))
    return [
        Scenario(
            f"operator-killed-after-call-delete/{c.index:04d}-{c.name}",
            "unit",
            kills.killed("delete", CrashAt(c.index, after_effect=True)),
        )
        for c in calls
        if c.index in picked
    ]


def try_bug(bug: Bug, scenarios: Iterable[Scenario]) -> Verdict:
    """Plays the scenarios with the bug until one of them reports it."""
    for scenario in sorted(scenarios, key=lambda s: not fnmatch.fnmatchcase(s.name, bug.first)):
        with bug.plant():
            result = run_one(scenario)
        if result.outcome is not Outcome.survived:
            detail = result.detail if result.outcome is Outcome.lost else f"{result.outcome.value}: {result.detail}"
            return Verdict(bug, scenario.name, detail)
    return Verdict(bug)


def run(tell: Callable[[str], None] = print) -> int:
    """The number of bugs that were not found, plus the scenarios of the sample that do not survive without one."""
    scenarios = sample()
    wrong = 0
    for scenario in scenarios:
        result = run_one(scenario)
        if result.outcome is not Outcome.survived:
            wrong += 1
            tell(f"without a bug, {scenario.name} is {result.outcome.value}: {result.detail.strip()[-300:]}")
    for bug in BUGS:
        verdict = try_bug(bug, scenarios)
        wrong += not verdict.found
        where = verdict.scenario or "NOT FOUND"
        tell(f"{'' if verdict.found else 'MISSED '}{bug.name} -> {where}: {verdict.detail.strip()[-160:]}")
    tell(f"{len(BUGS)} bugs, {len(scenarios)} scenarios in the sample, {wrong} mistakes of the oracle")
    return wrong


# --- retention --------------------------------------------------------------------------------------------------------

expired_steps = artifact_catalog.expired_steps


def _expiring(other: Callable[..., list[int]]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(artifact_catalog, "expired_steps", other)


def _oldest_kept(ready: Iterable[int], keep: int, deployed: Iterable[int] = (), referenced: Iterable[int] = ()) -> Any:
    counted = sorted({*ready} - {*deployed})
    return [] if keep < 0 else [step for step in counted[max(keep, 1) :] if step not in referenced]


def _deployed_ignored(ready: Any, keep: int, deployed: Any = (), referenced: Any = ()) -> list[int]:
    return expired_steps(ready, keep, (), referenced)


def _files_stay() -> AbstractContextManager[Any]:
    async def delete(*_: object) -> None:
        return None

    return patch.object(artifact_store.ArtifactStore, "delete", delete)


# --- deletion of a run ------------------------------------------------------------------------------------------------


def _building(change: Callable[[Plan], Plan]) -> Callable[[], AbstractContextManager[Any]]:
    build = PlanBuilder.build
    return lambda: patch.object(PlanBuilder, "build", lambda self, spec: change(build(self, spec)))


def _planning(change: Callable[[RunObservation, Plan], Plan]) -> Callable[[], AbstractContextManager[Any]]:
    plan = planner.plan_run
    return lambda: patch.object(
        reconciler, "plan_run", lambda seen, settings, now: change(seen, plan(seen, settings, now))
    )


def _without(policy: Any) -> Callable[[], AbstractContextManager[Any]]:
    plan, left = planner.plan_run, [p for p in planner.POLICIES if p is not policy]
    return lambda: patch.object(reconciler, "plan_run", lambda seen, settings, now: plan(seen, settings, now, left))


def _finalizer_when_running(plan: Plan) -> Plan:
    late = plan.status is not None and plan.status.phase is Phase.running
    return replace(plan, add_finalizer=plan.add_finalizer and late)


def _purge_last() -> AbstractContextManager[Any]:
    apply = Applier.apply

    async def other(self: Applier, observation: RunObservation, plan: Plan, now: datetime) -> Plan:
        executed = await apply(self, observation, replace(plan, purge=None), now)
        await apply(self, observation, Plan(purge=plan.purge), now)
        return executed

    return patch.object(Applier, "apply", other)


def _objects_in_use_forgotten() -> AbstractContextManager[Any]:
    return patch.object(ArtifactCatalog, "objects_in_use", property(lambda _: []))


@contextmanager
def _owner_kept() -> Iterator[None]:
    with (
        patch.object(deletion, "without_owner", copy.deepcopy),
        patch.object(artifacts, "without_owner", copy.deepcopy),
    ):
        yield


def _last_adapter_unlisted() -> AbstractContextManager[Any]:
    listed = artifact_store._list

    def other(*arguments: Any) -> Any:
        return [a for a in listed(*arguments) if (a.kind, a.step) != ("RLAdapter", MAX_STEPS)]

    return patch.object(artifact_store, "_list", other)


def _no_owner_references() -> AbstractContextManager[Any]:
    children = builders.children

    def other(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
        found = children(*arguments, **options)
        for obj in found:
            obj["metadata"].pop("ownerReferences", None)
        return found

    return patch.object(beginning, "children", other)


# --- counters and phases ----------------------------------------------------------------------------------------------


def _counting(times: int) -> Callable[[], AbstractContextManager[Any]]:
    count = pod_failures.count_restarts

    def other(*arguments: Any) -> Any:
        counted = count(*arguments)
        return replace(counted, restarts=times * counted.restarts)

    return lambda: patch.object(restarts, "count_restarts", other)


def _pods_forgotten() -> AbstractContextManager[Any]:
    count = pod_failures.count_restarts

    def other(old: Any, seen: Any) -> Any:
        return count([c.model_copy(update={"pods": []}) for c in old], seen)

    return patch.object(restarts, "count_restarts", other)


def _active_seconds_twice() -> AbstractContextManager[Any]:
    end = ending.attempt_end

    def other(status: Any, now: Any) -> Any:
        fields = end(status, now)
        if "past_active_seconds" in fields:
            fields["past_active_seconds"] += fields["past_active_seconds"] - status.past_active_seconds
        return fields

    return patch.object(ending, "attempt_end", other)


def _attempt_twice() -> AbstractContextManager[Any]:
    start = running.attempt_start

    def other(status: Any, now: Any) -> Any:
        change = start(status, now)
        return replace(change, fields={**change.fields, "attempt": 2 * change.fields["attempt"] - 1})

    return patch.object(running, "attempt_start", other)


def _phase_back(seen: RunObservation, plan: Plan) -> Plan:
    if (seen.run.get("status") or {}).get("phase") != "Completed" or plan.status is None:
        return plan
    return replace(plan, status=plan.status.model_copy(update={"phase": Phase.running}))


# --- children ---------------------------------------------------------------------------------------------------------


def _child_twice() -> AbstractContextManager[Any]:
    missing = children.missing_children

    def other(*arguments: Any) -> list[dict[str, Any]]:
        found = missing(*arguments)
        trainers = [c for c in found if c["kind"] == "ReplicaSet" and "trainer" in c["metadata"]["name"]]
        for trainer in map(copy.deepcopy, trainers):
            trainer["metadata"]["name"] += "-again"
            found.append(trainer)
        return found

    return patch.object(beginning, "missing_children", other)


def _child_after_the_end() -> Callable[[], AbstractContextManager[Any]]:
    written: dict[str, Any] = {}

    def change(seen: RunObservation, plan: Plan) -> Plan:
        written.update({c["metadata"]["name"]: c for c in plan.applies if c["kind"] == "ReplicaSet"})
        ended = (seen.run.get("status") or {}).get("phase") == "Completed"
        return replace(plan, applies=(*plan.applies, *written.values())) if ended else plan

    return _planning(change)


def _status_last() -> AbstractContextManager[Any]:
    apply = Applier.apply

    async def other(self: Applier, observation: RunObservation, plan: Plan, now: datetime) -> Plan:
        return await apply(self, observation, replace(plan, status_first=False), now)

    return patch.object(Applier, "apply", other)


# --- storage ----------------------------------------------------------------------------------------------------------


def _partial_ready() -> AbstractContextManager[Any]:
    inspect = artifact_store._inspect

    def other(store: Store, kind: Any, step: int, uri: S3Uri, *found: Any) -> Any:
        sizes, *_ = found
        if MANIFEST in sizes:
            return inspect(store, kind, step, uri, *found)
        promised = Manifest(kind=ArtifactKind.checkpoint, files=[], created_at=START, step=step, policy_version=step)
        return artifact_catalog.ObservedArtifact(kind, step, str(uri), promised)

    return patch.object(artifact_store, "_inspect", other)


def _manifest_first() -> AbstractContextManager[Any]:
    upload = Store.upload

    def other(self: Store, source: Any, uri: S3Uri, manifest: Manifest, *, once: bool = False) -> Manifest:
        found = self.read_manifest(uri)
        if found is None:
            promised = build_manifest(source, manifest)
            self.put_bytes(uri / MANIFEST, promised.model_dump_json(by_alias=True, exclude_none=True).encode())
            with patch.object(Store, "read_manifest", lambda *_: None):
                return upload(self, source, uri, manifest)
        return upload(self, source, uri, manifest, once=once)

    return patch.object(Store, "upload", other)


def _manifest_last_deleted() -> AbstractContextManager[Any]:
    delete = Store._delete

    def other(self: Store, uri: S3Uri, keys: list[str]) -> None:
        rest = [key for key in keys if not key.endswith(f"/{MANIFEST}")]
        if rest != keys:
            inner = [f"{uri.key}/{name}" for name, _ in self.list_files(uri) if not name.endswith(MANIFEST)]
            delete(self, uri, inner)
        delete(self, uri, keys)

    return patch.object(Store, "_delete", other)


BUGS: tuple[Bug, ...] = (
    Bug(
        "retention keeps one fewer",
        _expiring(lambda ready, keep, *more: expired_steps(ready, keep - 1, *more)),
        "are to be kept",
    ),
    Bug(
        "retention keeps one more",
        _expiring(lambda ready, keep, *more: expired_steps(ready, keep + 1, *more)),
        "is kept, though",
    ),
    Bug("retention keeps the oldest", _expiring(_oldest_kept), "are to be kept"),
    Bug("retention never deletes", _expiring(lambda *_: []), "is kept, though"),
    Bug("retention deletes the object and not the files", _files_stay, "is kept, though"),
    Bug("retention deletes a deployed adapter", _expiring(_deployed_ignored), "although it is deployed"),
    Bug("an adapter is not listed", _last_adapter_unlisted, "is lost"),
    Bug(
        "retention deletes a checkpoint that an unfinished run starts from",
        lambda: patch.object(artifact_catalog, "referenced_steps", lambda *_: set()),
        "starts from it",
    ),
    Bug("the finalizer is forgotten", _building(lambda plan: replace(plan, add_finalizer=False)), "no finalizer"),
    Bug("the finalizer comes when the run is Running", _building(_finalizer_when_running), "no finalizer"),
    Bug("the files go after the finalizer", _purge_last, "outlives its run", "operator-killed-*-delete_objects"),
    Bug("the deletion of a run forgets its deployed adapters", _objects_in_use_forgotten, "although it is deployed"),
    Bug("a deployed adapter keeps its run as owner", _owner_kept, "is lost"),
    Bug("children have no owner", _no_owner_references, "belongs to no run"),
    Bug("a restart is counted twice", _counting(2), "restarts are counted"),
    Bug("a restart is never counted", _counting(0), "restarts are counted"),
    Bug("counted pods are forgotten", _pods_forgotten, "restarts are counted", "trainer-dies-in-an-upload/*"),
    Bug("the active time of an attempt is counted twice", _active_seconds_twice, "s of activity within"),
    Bug("an attempt is counted twice", _attempt_twice, "attempts are counted"),
    Bug("the phase goes back from Completed to Running", _planning(_phase_back), "the phase went from Completed back"),
    Bug("a finished run is planned like any other", _without(ending.plan_finished), "Completed"),
    Bug(
        "workloads stay after the end",
        lambda: patch.object(ending, "workloads_to_delete_after_finish", lambda _: []),
        "outlives the end of its run",
    ),
    Bug(
        "what only pods need stays after the end",
        lambda: patch.object(ending, "children_to_delete_after_pods", lambda _: []),
        "outlives the end of its run",
    ),
    Bug("a child is started twice", _child_twice, "runs twice"),
    Bug("a child is started after the end", _child_after_the_end(), "after the end of its run"),
    Bug(
        "an attempt begins beside the pods of the one before",
        _without(beginning.wait_for_previous_pods),
        "run at the same time",
        "pods-end-late/*",
    ),
    Bug(
        "the status is written after the deletions that it was read for",
        _status_last,
        "restarts are counted",
        "operator-killed-*-apply_status",
    ),
    Bug("a checkpoint without its manifest becomes Ready", _partial_ready, "Ready"),
    Bug("an upload writes the manifest first", _manifest_first, "has a manifest, and not"),
    Bug(
        "a deletion takes the manifest last",
        _manifest_last_deleted,
        "has a manifest, and not",
        "s3-500-*-of-retention/*",
    ),
)
"""At least one for each invariant."""
