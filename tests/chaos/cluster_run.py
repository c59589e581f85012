"""A short run on the local cluster for a scenario, and checks of the objects and files that it leaves.

run = ClusterRun.begin(platform, seed)
run.wait_for_step(3)
...
run.survive()
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlrun.storage.errors import NotFound, Unreachable
from rlrun.storage.layout import MANIFEST, RunLayout
from rlrun.storage.manifest import Manifest
from rlrun.storage.metric_files import TRAINED

from demo.cluster import local_cluster
from demo.install import BUCKET, install_platform
from demo.kubectl import CommandFailed, Object
from demo.run_metrics import read_metrics
from demo.watch import describe
from tests.chaos import invariants
from tests.chaos.invariants import Expected, Picture, Stored
from tests.chaos.scenario import Hung, Lost, require
from tests.e2e.conftest import ENGINES, Platform

T = TypeVar("T")

NAME = "chaos"
STEPS = 12
INTERVAL = 2
SPEC: dict[str, Any] = {
    "model": ENGINES,
    "maxSteps": STEPS,
    "checkpoints": {"interval": INTERVAL, "keepCloud": 2},
    "adapters": {"interval": 3, "keepLast": 1},
    "artifactPolicy": "Delete",
    "maxRestarts": 10,
}
START_SECONDS = 180.0
FINISH_SECONDS = 240.0
SETTLE_SECONDS = 90.0
"""Time for pods to terminate and for retention in progress to finish."""
GONE_SECONDS = 120.0
LOOK_SECONDS = 0.5
KINDS = (
    "rlruns", "rlcheckpoints", "rladapters", "replicasets", "deployments", "jobs", "services",
    "networkpolicies", "configmaps", "secrets", "serviceaccounts", "pods",
)  # fmt: skip


@contextmanager
def opened() -> Iterator[Platform]:
    """The local cluster, which must be up, with chart, model and environment in place."""
    kubectl, s3 = local_cluster()
    install_platform(kubectl, s3)
    yield Platform(kubectl, s3)


def with_patience(look: Callable[[], T]) -> T:
    """Return what `look` reads from S3, which may be away for a moment.

    After a restart of the API server the controller manager can take a healthy node for lost until it sees the node's
    lease again, and Services have no endpoints meanwhile. Raises Unreachable after SETTLE_SECONDS.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            return look()
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_SECONDS)


@dataclass
class ClusterRun:
    """One run in a namespace of its own."""

    platform: Platform
    namespace: str
    uid: str = ""
    largest_step: int = 0
    unsaid_after: int | None = None
    """Metrics of some steps in a row after this one may be missing: they were only on the disk of a process that was
    killed without warning while S3 was away. The last step's may not."""
    spec: dict[str, Any] = field(default_factory=lambda: dict(SPEC))

    @classmethod
    def begin(cls, platform: Platform, **spec: Any) -> "ClusterRun":
        """Applies a run."""
        run = cls(platform, f"chaos-{secrets.token_hex(3)}")
        run.spec |= spec
        platform.kubectl.ensure_namespace(run.namespace)
        platform.kubectl.apply(platform.run_object(NAME, run.namespace, **run.spec))
        return run

    # --- what a scenario waits for ----------------------------------------------------------------------------------

    def look(self) -> Object:
        """The RLRun, or an empty object while the API server is away or the run is gone."""
        try:
            found = self.platform.kubectl.get("rlrun", NAME, self.namespace) or {}
        except CommandFailed:
            return {}
        self.uid = found.get("metadata", {}).get("uid") or self.uid
        return found

    def step(self) -> int:
        """The run's step as its status has it."""
        progress = (self.look().get("status") or {}).get("progress") or {}
        self.largest_step = max(self.largest_step, int(progress.get("step", 0)))
        return int(progress.get("step", 0))

    def wait_for(self, what: str, look: Callable[[], T | None], seconds: float) -> T:
        """Return what `look` finds. Raises Hung after `seconds`, Lost if the run failed meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            run = self.look()
            if (run.get("status") or {}).get("phase") == "Failed":
                raise Lost(f"the run failed while waiting for {what}:\n{describe(run)}")
            if time.monotonic() > deadline:
                raise Hung(f"no sign of {what} in {seconds:.0f} s; the run says:\n{describe(run)}")
            time.sleep(LOOK_SECONDS)

    def wait_for_step(self, step: int, seconds: float = START_SECONDS) -> None:
        """Wait until the run has made that many steps."""
        self.wait_for(f"step {step}", lambda: self.step() >= step, seconds)

    def wait_for_phase(self, phase: str, seconds: float = START_SECONDS) -> Object:
        """The run in that phase."""

        def look() -> Object | None:
            run = self.look()
            return run if (run.get("status") or {}).get("phase") == phase else None

        return self.wait_for(f"phase {phase}", look, seconds)

    def pods(self, role: str | None = None) -> list[Object]:
        """Living pods of the run, of one role or of all."""
        selector = f"rlrun.dev/run={NAME}" + (f",rlrun.dev/role={role}" if role else "")
        found = self.platform.kubectl.list("pods", self.namespace, selector)
        return [
            p
            for p in found
            if p["status"].get("phase") in ("Pending", "Running") and not p["metadata"].get("deletionTimestamp")
        ]

    def change(self, patch: str) -> None:
        """kubectl patch."""
        self.platform.kubectl("patch", "rlrun", NAME, "-n", self.namespace, "--type", "merge", "-p", patch)

    # --- the end ----------------------------------------------------------------------------------------------------

    def survive(self, *, attempts: int | None = None) -> None:
        """The run completes, all invariants hold, it is deleted, and nothing is left. Raises Lost or Hung."""
        self.wait_for_phase("Completed", FINISH_SECONDS)
        deadline = time.monotonic() + SETTLE_SECONDS
        while found := self.violations(attempts):
            if time.monotonic() > deadline:
                raise Lost("; ".join(found))
            time.sleep(LOOK_SECONDS)
        self.remove()

    def violations(self, attempts: int | None = None) -> list[str]:
        """Return the violated invariants of the completed run."""
        done, seen = self.look(), self.picture()
        found = invariants.badly_ended(done, {"Completed": ["Completed"]})
        found += invariants.partly_ready(seen) + invariants.orphans(seen)
        found += invariants.promised_too_much(seen) + invariants.unprotected(seen)
        found += invariants.counters(done, seen, Expected(attempts=attempts))
        root, last = self.layout.root.key, int(self.spec["maxSteps"])
        for kind, section, keep in (
            ("RLCheckpoint", "checkpoints", "keepCloud"),
            ("RLAdapter", "adapters", "keepLast"),
        ):
            # A full disk may cost a checkpoint in between, never the last one; an older one stays in its place then.
            there = {int(o["spec"]["step"]) for o in seen.of(kind)}
            found += invariants.retention(seen, root, kind, self.spec[section][keep], there | {last})
            if len(there) < self.spec[section][keep]:
                found.append(f"{len(there)} {kind}s are kept (steps {sorted(there)}), not {self.spec[section][keep]}")
        metrics = with_patience(lambda: list(read_metrics(self.platform.s3.store(), self.layout)))
        lines = [line for line in metrics if TRAINED in line]
        steps = [int(line["step"]) for line in lines]
        found += invariants.steps_told(steps, self.spec["maxSteps"], gap_after=self.unsaid_after)
        return found

    def remove(self) -> None:
        """kubectl delete; then nothing of the run is left, neither in the cluster nor in S3."""
        self.platform.kubectl("delete", "rlrun", NAME, "-n", self.namespace, "--wait=false")
        self.check_removed()

    def check_removed(self) -> None:
        """Check that nothing of the deleted run is left. Raises Lost with the objects and files that are."""

        def nothing_left() -> bool:
            mine = [o for o in self.picture().objects if (o["metadata"].get("labels") or {}).get("rlrun.dev/run")]
            return not self.look() and not mine

        try:
            self.wait_for("the end of all objects", nothing_left, GONE_SECONDS)
        finally:
            left = [f"{o['kind']} {o['metadata']['name']}" for o in self.picture().objects if self._is_mine(o)]
        require([*left, *invariants.left_after_deletion(self.picture(), self.layout.root.key)])

    def clean_up(self) -> None:
        """Delete the run after any outcome, so that the next scenario has all cores."""
        kubectl = self.platform.kubectl
        for command in (
            ("delete", "rlrun", NAME, "-n", self.namespace, "--ignore-not-found", "--wait=false"),
            ("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false"),
            ("delete", "pods", "--all", "-n", self.namespace, "--grace-period=0", "--force", "--wait=false"),
        ):
            try:
                kubectl(*command)
            except CommandFailed as error:
                print(f"cleaning up: {error}")

    # --- everything at one moment -----------------------------------------------------------------------------------

    @property
    def layout(self) -> RunLayout:
        """Where its files are."""
        return RunLayout.of(BUCKET, "", self.namespace, self.uid)

    def picture(self) -> Picture:
        """Read objects before files: an artifact that becomes Ready in between must not appear incomplete."""
        objects = self.platform.kubectl.list(",".join(KINDS), self.namespace)
        return Picture(objects, *(with_patience(self._read_files) if self.uid else ()))

    def _read_files(self) -> tuple[dict[str, Stored], dict[str, Manifest]]:
        files: dict[str, Stored] = {}
        manifests: dict[str, Manifest] = {}
        store, root = self.platform.s3.store(), self.layout.root
        with closing(store):
            for name, size in store.list_files(root):
                folder, _, last = name.rpartition("/")
                if name.partition("/")[0] not in invariants.FOLDERS.values():
                    files[f"{root.key}/{name}"] = Stored(size, "")
                    continue
                try:
                    data = store.get_bytes(root / name)
                except NotFound:
                    continue  # It went after it was listed.
                files[f"{root.key}/{name}"] = Stored(size, hashlib.sha256(data).hexdigest())
                if last == MANIFEST:
                    manifest = store.read_manifest(root / folder)
                    if manifest is not None:
                        manifests[f"{root.key}/{folder}"] = manifest
        return files, manifests

    def _is_mine(self, obj: Object) -> bool:
        return bool((obj["metadata"].get("labels") or {}).get("rlrun.dev/run"))
