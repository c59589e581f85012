"""Operator on a cluster in memory: its own code, fakes for everyone else."""

from dataclasses import dataclass, field
from typing import Any

from rlrun.kube.objects import Obj
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.runtime.metrics import RunPhaseCollector

from tests.support.clocks import Clock
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.fake_poller import FakePoller

SETTINGS = OperatorSettings.model_validate(
    {
        "s3": {
            "endpointUrl": "http://s3.test:8333",
            "bucket": "rlrun",
            "credentialsSecret": {"namespace": "rlrun-system", "name": "s3"},
        },
        "images": {
            "orchestrator": {"repository": "rlrun-orchestrator", "tag": "t"},
            "trainer": {"repository": "rlrun-trainer", "tag": "t"},
            "inference": {"repository": "vllm", "tag": "t"},
        },
    }
)


@dataclass
class World:
    cluster: FakeCluster
    artifacts: FakeArtifacts = field(default_factory=FakeArtifacts)
    poller: FakePoller = field(default_factory=FakePoller)
    clock: Clock = field(default_factory=Clock)
    settings: OperatorSettings = field(default_factory=lambda: SETTINGS)

    def reconciler(self) -> Reconciler:
        """A new operator: nothing is remembered from one to the next."""
        observer = Observer(self.cluster.kube, self.artifacts, self.poller, self.settings)
        applier = Applier(self.cluster.kube, self.artifacts)
        return Reconciler(observer, applier, self.settings, RunPhaseCollector(lambda: 0, lambda: 0), self.clock)

    async def reconcile(self, times: int = 1, name: str = "reverse") -> float | None:
        again = None
        for _ in range(times):
            again = await self.reconciler().reconcile(RunKey("team", name))
        return again

    @property
    def run(self) -> Obj:
        found = self.cluster.find("RLRun", "reverse")
        assert found is not None
        return found

    @property
    def status(self) -> Obj:
        return dict(self.run.get("status") or {})

    def condition(self, kind: str) -> Obj:
        return next(c for c in self.status["conditions"] if c["type"] == kind)

    def change_spec(self, **changes: Any) -> None:
        run = self.run
        self.cluster.put(
            {
                **run,
                "spec": {**run["spec"], **changes},
                "metadata": {**run["metadata"], "generation": run["metadata"]["generation"] + 1},
            }
        )

    async def start(self) -> None:
        """As far as all pods being there and ready."""
        await self.reconcile(2)
        step_kubelet(self.cluster)
        await self.reconcile()
