"""What must hold whatever broke: pure functions over the objects in the cluster and the files in S3.

Each returns what it found violated, as sentences; an empty list is a pass.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.constants import RUN_UID_LABEL
from rlrun.kube.objects import label
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import Manifest

Obj = dict[str, Any]

CATALOGUE = ("RLCheckpoint", "RLAdapter")
FOLDERS = {"RLCheckpoint": "checkpoints", "RLAdapter": "adapters"}
FINISHED = ("Completed", "Failed", "Stopped")
NEEDED_AFTER_THE_END = ("Job", "Pod", "ConfigMap", "Service", "NetworkPolicy", "ServiceAccount", *CATALOGUE)
"""What a finished run may still have until it is deleted; pods only dead ones."""


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
    """Every object that carries a run's uid belongs to a run that is there; a finished run has no living pods.

    Checkpoints and adapters may outlive their run, but not their files, unless somebody has deployed them.
    """
    runs = {o["metadata"]["uid"]: o for o in seen.of("RLRun")}
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
        if phase in FINISHED and (obj["kind"] not in NEEDED_AFTER_THE_END or _is_living_pod(obj)):
            found.append(f"{what} outlives the end of its run ({phase})")
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
    """Nothing lies below the root of a run that took its files along, but the folders (keys) that had to stay."""
    below = [key for key in seen.files if key.startswith(f"{root}/")]
    stray = [key for key in below if not any(key.startswith(f"{folder}/") for folder in kept)]
    lost = [folder for folder in kept if not any(key.startswith(f"{folder}/") for key in below)]
    return [f"{key} outlives its run" for key in stray] + [f"{folder} is gone, though protected" for folder in lost]


def retention(seen: Picture, root: str, kind: str, keep: int) -> list[str]:
    """At the end of a run there are exactly the newest `keep` of what is not deployed (all with -1), Ready."""
    mine = {int(o["spec"]["step"]): o for o in seen.of(kind) if _is_below(o, root)}
    counted = sorted(step for step, o in mine.items() if not o["spec"].get("deployed"))
    found = [
        f"{kind} of step {step} is {(o.get('status') or {}).get('phase')}"
        for step, o in sorted(mine.items())
        if (o.get("status") or {}).get("phase") != "Ready"
    ]
    if keep >= 0 and len(counted) > keep:
        found.append(f"{len(counted)} {kind}s are kept (steps {counted}), not {keep}")
    return found


def counters(
    run: Obj, seen: Picture, *, restarts: tuple[int, int] | None = None, attempts: int | None = None
) -> list[str]:
    """The numbers of a finished run's status agree with each other, with the catalogue and with what was done to it.

    `restarts` is (at least, at most); what the operator could not see because it was away is not counted.
    """
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
    counted = int(status.get("restarts") or 0)
    if restarts is not None and not restarts[0] <= counted <= restarts[1]:
        found.append(f"{counted} restarts are counted, {restarts[0]} to {restarts[1]} happened")
    if attempts is not None and status.get("attempt", 1) != attempts:
        found.append(f"attempt {status.get('attempt')}, not {attempts}")
    if int(status.get("pastActiveSeconds") or 0) < 0:
        found.append(f"{status.get('pastActiveSeconds')} s of activity")
    names = [c["type"] for c in status.get("conditions") or []]
    if len(names) != len(set(names)):
        found.append(f"conditions {names} are not one per type")
    return found


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
