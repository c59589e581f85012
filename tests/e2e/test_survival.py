"""A run outlives each of its pods, and the operator that watches over it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from rlrun.storage.layout import RunLayout

from demo.install import BUCKET, SYSTEM_NAMESPACE
from demo.kubectl import Kubectl, Object
from demo.run_metrics import mean_of, read_metrics
from demo.watch import follow
from tests.e2e.conftest import ENGINES, SECONDS, STUBS, Platform

pytestmark = pytest.mark.alone  # the operator is killed as well

CHECKPOINT_INTERVAL = 3
# Between two deletions a run makes up to six steps, more than that where steps are quick beside a slow API server.
MAX_STEPS = {ENGINES: 24, STUBS: 60}
VICTIMS = ["environment", "trainer", "inference", "orchestrator", "operator"]


@dataclass
class Killer:
    """Deletes one pod after another, each a few steps after the run has recovered from the one before."""

    kubectl: Kubectl
    run: str
    namespace: str
    left: list[str] = field(default_factory=lambda: list(VICTIMS))
    next_step: int = 3
    steps_lost: dict[str, int] = field(default_factory=dict)
    newest: int = 0
    last_victim: str | None = None

    def look(self, run: Object) -> None:
        """Called with every look at the run."""
        step = (run.get("status", {}).get("progress") or {}).get("step", 0)
        if self.last_victim and step < self.newest:
            lost = self.newest - step
            self.steps_lost[self.last_victim] = max(lost, self.steps_lost.get(self.last_victim, 0))
        self.newest = max(self.newest, step)
        if self.left and step >= self.next_step and run["status"].get("phase") == "Running":
            self.last_victim = self.left.pop(0)
            self.kill(self.last_victim)
            self.next_step = step + 4

    def kill(self, role: str) -> None:
        """Delete the role's pod at once, without a goodbye."""
        if role == "operator":
            where, selector = SYSTEM_NAMESPACE, "app.kubernetes.io/name=rlrun,app.kubernetes.io/component=operator"
        else:
            where, selector = self.namespace, f"rlrun.dev/run={self.run},rlrun.dev/role={role}"
        pods = self.kubectl.list("pods", where, selector)
        assert pods, f"there is no {role} pod to delete"
        self.kubectl("delete", "pod", pods[0]["metadata"]["name"], "-n", where, "--grace-period=0", "--force")
        print(f"deleted the {role} pod")


def test_run_completes_though_every_pod_is_deleted_once(
    platform: Platform, model: str, fresh_namespace: Callable[[str], str]
) -> None:
    max_steps = MAX_STEPS[model]
    namespace = fresh_namespace("survival")
    run = platform.run_object(
        "survivor",
        namespace,
        model=model,
        maxSteps=max_steps,
        # Steps that are too fast would end the run before every pod was deleted.
        batchSize=128,
        checkpoints={"interval": CHECKPOINT_INTERVAL, "keepCloud": 3},
    )
    platform.kubectl.apply(run)
    killer = Killer(platform.kubectl, "survivor", namespace)

    done = follow(platform.kubectl, "survivor", namespace, seconds=2 * SECONDS, each=killer.look)

    assert killer.left == [], "the run was over before every role had been deleted"
    assert done["status"]["progress"]["step"] == max_steps
    assert all(lost <= CHECKPOINT_INTERVAL for lost in killer.steps_lost.values()), killer.steps_lost
    lines = read_metrics(platform.s3.store(), RunLayout.of(BUCKET, "", namespace, done["metadata"]["uid"]))
    assert [line["step"] for line in lines] == list(range(1, max_steps + 1))
    assert all("reward/mean" in line for line in lines), "the step under way when the orchestrator died has its rewards"
    if model == ENGINES:
        assert mean_of(lines[-4:], "reward/mean") > mean_of(lines[:4], "reward/mean")
    assert done["status"]["restarts"] >= len(VICTIMS) - 1
