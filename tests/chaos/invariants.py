"""Invariants that hold after every fault: pure functions over the objects in the cluster and the files in S3.

Each returns what it found violated, as sentences; an empty list is a pass. Expected values come from the scenario
(the steps that were uploaded, the pods that died), never from the operator's own numbers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rlrun.constants import ATTEMPT_LABEL, COMPONENT_LABEL, FINALIZER, RUN_UID_LABEL
from rlrun.kube.objects import label
from rlrun.kube.pods import role_of
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import Manifest

Obj = dict[str, Any]

CATALOGUE = ("RLCheckpoint", "RLAdapter")
FOLDERS = {"RLCheckpoint": "checkpoints", "RLAdapter": "adapters"}
FINISHED = ("Completed", "Failed", "Stopped")
WORKLOADS = ("ReplicaSet", "Deployment", "Job", "Pod")
NEVER_LESS = (
    "attempt",
    "restarts",
    "runRestarts",
    "runRestartsTowardMax",
    "pastActiveSeconds",
    "pastGpuSeconds",
    "observedGeneration",
)
"""Numbers of a run's status that only grow."""
WRITTEN_ONCE = ("startTime", "completionTime")
NEEDED_AFTER_THE_END = ("Job", "Pod", *CATALOGUE)
"""Kinds that a finished run has until it is deleted. Its pods have ended."""
NEEDED_BY_PODS = ("ConfigMap", "Service", "NetworkPolicy", "ServiceAccount")
"""Further kinds that a finished run may have while one of its pods may run."""


@dataclass(frozen=True)
class Stored:
    """One object in S3."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Picture:
    """Everything at one moment."""

    objects: Sequence[Obj]
    """Of all kinds the operator has to do with."""
    files: Mapping[str, Stored] = field(default_factory=dict)
    """By key, without the bucket."""
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    """By key of the folder; only those that can be read."""

    def of(self, *kinds: str) -> list[Obj]:
        """The objects of these kinds."""
        return [o for o in self.objects if o["kind"] in kinds]

    def run(self, name: str) -> Obj | None:
        """The RLRun of that name."""
        return next((o for o in self.of("RLRun") if o["metadata"]["name"] == name), None)


def partly_ready(seen: Picture) -> list[str]:
    """A checkpoint or adapter that says Ready has a manifest, and each of its files has the size and hash in it."""
    found = []
    for obj in seen.of(*CATALOGUE):
        if (obj.get("status") or {}).get("phase") != "Ready":
            continue
        name, folder = f"{obj['kind']} {obj['metadata']['name']}", S3Uri.parse(obj["spec"]["uri"]).key
        manifest = seen.manifests.get(folder)
        if manifest is None:
            found.append(f"{name} is Ready without a manifest")
            continue
        if manifest.step != obj["spec"]["step"]:
            found.append(f"{name} of step {obj['spec']['step']} has the manifest of step {manifest.step}")
        for entry in manifest.files:
            stored = seen.files.get(f"{folder}/{entry.name}")
            if stored is None:
                found.append(f"{name} is Ready without its file {entry.name}")
            elif stored != Stored(entry.size, entry.sha256):
                found.append(f"{name} is Ready with another {entry.name} than its manifest says")
    return found


def promised_too_much(seen: Picture) -> list[str]:
    """A manifest is written last and deleted first: wherever there is one, all of its files are there."""
    found = []
    for folder, manifest in seen.manifests.items():
        for entry in manifest.files:
            if seen.files.get(f"{folder}/{entry.name}") != Stored(entry.size, entry.sha256):
                found.append(f"{folder} has a manifest, and not the {entry.name} in it")
    return found


def badly_ended(run: Obj | None, allowed: Mapping[str, Collection[str]]) -> list[str]:
    """The run is finished in one of the phases, for one of the reasons given with it (none given: any)."""
    if run is None:
        return ["the run is gone"]
    status = run.get("status") or {}
    phase, reason = status.get("phase"), status.get("reason")
    if phase is None or phase not in allowed:
        return [f"the run is {phase} ({reason}: {status.get('message')}), not {' or '.join(allowed)}"]
    if allowed[phase] and reason not in allowed[phase]:
        return [f"the run is {phase} because of {reason}, not of {' or '.join(allowed[phase])}"]
    truth = {c["type"]: c["status"] for c in status.get("conditions") or []}
    wrong = [
        f"condition {kind} is {truth.get(kind)} in phase {phase}"
        for kind, expected in (("Completed", phase == "Completed"), ("Failed", phase == "Failed"), ("Running", False))
        if (truth.get(kind) == "True") != expected
    ]
    if not status.get("completionTime"):
        wrong.append("a finished run has no completionTime")
    return wrong


def orphans(seen: Picture) -> list[str]:
    """Every object that carries a run's uid belongs to a run that is there; a finished run has no living pods, but
    for those on their way out, and nothing that only pods need once they have ended.

    Checkpoints and adapters may outlive their run, but not their files, unless somebody has deployed them.
    """
    runs = {o["metadata"]["uid"]: o for o in seen.of("RLRun")}
    alive = {label(pod, RUN_UID_LABEL) for pod in seen.of("Pod") if _is_living_pod(pod)}
    found = []
    for obj in seen.objects:
        uid = label(obj, RUN_UID_LABEL)
        if not uid:
            continue
        what = f"{obj['kind']} {obj['metadata']['name']}"
        if obj["kind"] in CATALOGUE:
            folder = S3Uri.parse(obj["spec"]["uri"]).key
            if folder not in seen.manifests and not obj["spec"].get("deployed"):
                found.append(f"{what} has no files any more")
            continue
        if uid not in runs:
            found.append(f"{what} belongs to no run")
            continue
        phase = (runs[uid].get("status") or {}).get("phase")
        if obj["metadata"].get("deletionTimestamp"):
            continue
        needed = (*NEEDED_AFTER_THE_END, *(NEEDED_BY_PODS if uid in alive else ()))
        if phase in FINISHED and (obj["kind"] not in needed or _is_living_pod(obj)):
            found.append(f"{what} outlives the end of its run ({phase})")
    return found


def unprotected(seen: Picture) -> list[str]:
    """A run has the finalizer before anything of it exists, until its deletion is recorded."""
    found = []
    for run in seen.of("RLRun"):
        if run["metadata"].get("deletionTimestamp"):
            continue
        if FINALIZER in (run["metadata"].get("finalizers") or []):
            continue
        uid = run["metadata"]["uid"]
        mine = [o for o in seen.objects if label(o, RUN_UID_LABEL) == uid]
        if mine:
            found.append(f"run {run['metadata']['name']} has {mine[0]['kind']} and no finalizer")
    return found


def doubled(seen: Picture) -> list[str]:
    """No component of a run has two living pods, but for one that is on its way out."""
    living: dict[tuple[str, str], list[str]] = {}
    for pod in seen.of("Pod"):
        if _is_living_pod(pod) and not pod["metadata"].get("deletionTimestamp"):
            component = (label(pod, RUN_UID_LABEL), label(pod, COMPONENT_LABEL))
            living.setdefault(component, []).append(pod["metadata"]["name"])
    return [f"{component} runs twice: {names}" for (_, component), names in living.items() if len(names) > 1]


def overlapping(seen: Picture) -> list[str]:
    """No two attempts and no two orchestrators of a run have living pods, whether or not these are being deleted.

    Both would write the same folders.
    """
    attempts: dict[str, set[str]] = {}
    orchestrators: dict[str, list[str]] = {}
    for pod in filter(_is_living_pod, seen.of("Pod")):
        run = label(pod, RUN_UID_LABEL)
        attempts.setdefault(run, set()).add(label(pod, ATTEMPT_LABEL))
        if role_of(pod) == "orchestrator":
            orchestrators.setdefault(run, []).append(pod["metadata"]["name"])
    return [
        *(f"pods of attempts {sorted(found)} run at the same time" for found in attempts.values() if len(found) > 1),
        *(f"orchestrators {sorted(found)} run at the same time" for found in orchestrators.values() if len(found) > 1),
    ]


def started_late(obj: Obj, runs: Iterable[Obj]) -> list[str]:
    """No workload is written for a run that has ended, is paused or is gone; `obj` is about to be written."""
    if obj["kind"] not in WORKLOADS:
        return []
    what = f"{obj['kind']} {obj['metadata']['name']} was started"
    run = next((r for r in runs if r["metadata"]["uid"] == label(obj, RUN_UID_LABEL)), None)
    if run is None or run["metadata"].get("deletionTimestamp"):
        return [f"{what} for a run that is deleted"]
    phase = (run.get("status") or {}).get("phase")
    if phase in FINISHED:
        return [f"{what} after the end of its run ({phase})"]
    return [f"{what} for a run that is suspended"] if run["spec"].get("suspend") else []


def regressed(old: Obj, new: Obj) -> list[str]:
    """Fields that a new status of a run must not reset: a final phase, a count, a time that is written once."""
    found = []
    before, after = old.get("phase"), new.get("phase")
    if before in FINISHED and after != before:
        found.append(f"the phase went from {before} back to {after}")
    for name in NEVER_LESS:
        if (new.get(name) or 0) < (old.get(name) or 0):
            found.append(f"{name} went from {old.get(name)} back to {new.get(name)}")
    for name in WRITTEN_ONCE:
        if old.get(name) and new.get(name) != old[name]:
            found.append(f"{name} was {old[name]} and became {new.get(name)}")
    return found


def uncatalogued(seen: Picture, root: str) -> list[str]:
    """Every whole checkpoint and adapter below a run's root has its object, and nothing half lies beside them."""
    known = {S3Uri.parse(o["spec"]["uri"]).key for o in seen.of(*CATALOGUE)}
    found = []
    for folder in sorted(artifact_folders(seen, root)):
        if folder not in seen.manifests:
            found.append(f"{folder} has files and no {MANIFEST}")
        elif folder not in known:
            found.append(f"{folder} has no object in the catalogue")
    return found


def artifact_folders(seen: Picture, root: str) -> set[str]:
    """Keys of the step folders of checkpoints and adapters below the root `{prefix}/{namespace}/{uid}`."""
    found = set()
    for key in seen.files:
        parts = key.removeprefix(f"{root}/").split("/")
        if key.startswith(f"{root}/") and len(parts) > 2 and parts[0] in FOLDERS.values():
            found.add("/".join([root, *parts[:2]]))
    return found


def left_after_deletion(seen: Picture, root: str, kept: Collection[str] = ()) -> list[str]:
    """Nothing lies below the root of a run that took its files along, but the folders (keys) that had to stay, with
    their objects. Of the others there is no object either."""
    below = [key for key in seen.files if key.startswith(f"{root}/")]
    stray = [key for key in below if not any(key.startswith(f"{folder}/") for folder in kept)]
    lost = [folder for folder in kept if not any(key.startswith(f"{folder}/") for key in below)]
    objects = {S3Uri.parse(o["spec"]["uri"]).key: o for o in seen.of(*CATALOGUE) if _is_below(o, root)}
    found = [f"{key} outlives its run" for key in stray] + [f"{folder} is gone, though protected" for folder in lost]
    found += [f"{o['kind']} {o['metadata']['name']} outlives its run" for f, o in objects.items() if f not in kept]
    for folder in kept:
        if folder not in objects:
            found.append(f"the object of {folder} is lost, though protected")
        elif (objects[folder].get("status") or {}).get("phase") != "Ready":
            found.append(f"{folder} is {objects[folder]['status'].get('phase')}, though protected")
    return found


def retention(
    seen: Picture,
    root: str,
    kind: str,
    keep: int,
    made: Collection[int],
    *,
    needed: Collection[int] = (),
    expired: Collection[int] = (),
) -> list[str]:
    """Of the steps that were `made` there are exactly the newest `keep` (all with -1), each Ready with its files.

    Deployed ones and those that another run starts from (`needed`) stay besides; the deployed ones do not count.
    `expired` were deleted when there were enough newer ones: they do not come back when one of these is deployed.
    """
    mine = {int(o["spec"]["step"]): o for o in seen.of(kind) if _is_below(o, root)}
    deployed = {step for step, o in mine.items() if o["spec"].get("deployed")}
    counted = sorted({*made} - deployed)
    wanted = deployed | ({*needed} & {*made}) | {*(counted if keep < 0 else counted[-max(keep, 1) :])}
    found = [f"{kind} of step {step} is lost" for step in sorted(wanted - {*mine} - {*expired})]
    found += [f"{kind} of step {step} is kept, though not among the newest {keep}" for step in sorted({*mine} - wanted)]
    for step, obj in sorted(mine.items()):
        phase = (obj.get("status") or {}).get("phase")
        if phase != "Ready":
            found.append(f"{kind} of step {step} is {phase}")
        if S3Uri.parse(obj["spec"]["uri"]).key not in seen.manifests:
            found.append(f"{kind} of step {step} has lost its files")
    return found


def expired_early(seen: Picture, folder: str, keep: int) -> list[str]:
    """Retention deletes an artifact (by the key of its folder) only where enough newer ones are whole and stay."""
    above = folder.rpartition("/")[0]
    kind = next((kind for kind, part in FOLDERS.items() if above.endswith(f"/{part}")), "")
    deployed = {S3Uri.parse(o["spec"]["uri"]).key for o in seen.of(kind) if o["spec"].get("deployed")}
    newer = [f for f in seen.manifests if f.startswith(f"{above}/") and f > folder and f not in deployed]
    if folder in deployed:
        return [f"{folder} was deleted although it is deployed"]
    if keep < 0 or len(newer) < max(keep, 1):
        return [f"{folder} was deleted with {len(newer)} newer ones, {keep} are to be kept"]
    return []


@dataclass(frozen=True)
class Expected:
    """What the numbers of a finished run must be: exact, or (at least, at most) where the operator may have been blind.

    None: not known.
    """

    restarts: int | tuple[int, int] | None = None
    """Of containers and pods, and of the whole run."""
    run_restarts: int | tuple[int, int] | None = None
    attempts: int | tuple[int, int] | None = None
    steady_clock: bool = True
    """True if the operator's clock was not changed."""


def counters(run: Obj, seen: Picture, expected: Expected) -> list[str]:
    """The numbers of a finished run's status agree with each other, with the catalogue and with what was done to it."""
    status, spec = run.get("status") or {}, run.get("spec") or {}
    progress = status.get("progress") or {}
    step, maximum = progress.get("step", 0), spec.get("maxSteps")
    found = []
    if status.get("phase") == "Completed" and step != maximum:
        found.append(f"completed at step {step} of {maximum}")
    if maximum is not None and step > maximum:
        found.append(f"step {step} is beyond {maximum}")
    uid = run["metadata"]["uid"]
    for kind, listed in (("RLCheckpoint", "checkpoints"), ("RLAdapter", "adapters")):
        ready = sorted(
            (
                int(o["spec"]["step"])
                for o in seen.of(kind)
                if o["spec"]["runUid"] == uid and (o.get("status") or {}).get("phase") == "Ready"
            ),
            reverse=True,
        )
        shown = [int(entry["step"]) for entry in status.get(listed) or []]
        if shown != ready[:10]:
            found.append(f"the status lists {listed} {shown}, the catalogue has {ready}")
    found += _counted("restarts", status.get("restarts", 0), expected.restarts)
    found += _counted("restarts of the run", status.get("runRestarts", 0), expected.run_restarts)
    found += _counted("attempts", status.get("attempt", 1), expected.attempts)
    active = int(status.get("pastActiveSeconds") or 0)
    if active < 0:
        found.append(f"{active} s of activity")
    begun, ended = status.get("startTime"), status.get("completionTime")
    if expected.steady_clock and begun and ended:
        lasted = (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()
        if active > lasted:
            found.append(f"{active} s of activity within {lasted:.0f} s")
    names = [c["type"] for c in status.get("conditions") or []]
    if len(names) != len(set(names)):
        found.append(f"conditions {names} are not one per type")
    return found


def _counted(what: str, number: int, expected: int | tuple[int, int] | None) -> list[str]:
    if expected is None:
        return []
    least, most = (expected, expected) if isinstance(expected, int) else expected
    if least <= number <= most:
        return []
    return [f"{number} {what} are counted, {least if least == most else f'{least} to {most}'} happened"]


def steps_told(steps: Sequence[int], last: int, *, gap_after: int | None = None) -> list[str]:
    """Every step from 1 to the last one has its line of metrics, once, in order.

    With `gap_after`, one run of steps after that one may be missing, but not the last step.
    """
    missing = sorted({*range(1, last + 1)} - {*steps})
    in_order = list(steps) == [step for step in range(1, last + 1) if step not in missing]
    one_gap = missing == list(range(missing[0], missing[-1] + 1)) if missing else True
    allowed = gap_after is not None and one_gap and last not in missing and min(missing, default=last) > gap_after
    if in_order and (not missing or allowed):
        return []
    return [f"metrics of steps {list(steps)} are there"]


def _is_living_pod(obj: Obj) -> bool:
    return obj["kind"] == "Pod" and obj.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _is_below(obj: Obj, root: str) -> bool:
    return S3Uri.parse(obj["spec"]["uri"]).key.startswith(f"{root}/")
