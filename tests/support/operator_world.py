"""Operator on a cluster in memory: its own code, fakes for everyone else."""

import json
from dataclasses import dataclass, field
from typing import Any

from rlrun.kube.connection.cluster_clock import ClusterClock
from rlrun.kube.objects import Obj
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import S3Uri
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.cluster.tenants import TenancyProblem, no_problem
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.admission_queue import AdmissionQueue
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.planning.observation import RunKey, TrainerReport
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.storage.usage_log import UsageLog

from tests.support.clocks import Clock
from tests.support.cluster_objects import STORAGE_KEY
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.fake_poller import FakePoller, training
from tests.support.informer_feed import InformerFeed

SETTINGS = OperatorSettings.model_validate(
    {
        "s3": {
            "endpoint": "http://s3.test:8333",
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


USAGE_ROOT = S3Uri(SETTINGS.s3.bucket, SETTINGS.s3.prefix)


@dataclass
class World:
    cluster: FakeCluster
    artifacts: FakeArtifacts = field(default_factory=FakeArtifacts)
    poller: FakePoller = field(default_factory=FakePoller)
    clock: Clock = field(default_factory=Clock)
    settings: OperatorSettings = field(default_factory=lambda: SETTINGS)
    queue: AdmissionQueue | None = None
    tenancy_problem: TenancyProblem = no_problem
    feed: InformerFeed | None = None
    """Informers of operators, told of all changes before each reconcile. None: everything is read each time."""
    token_key: bytes | None = None
    """Key of the tokens of runs. None: processes require no tokens, and no run shares engines."""
    pool_problems: dict[PoolIdentity, Problem] = field(default_factory=dict)
    pool_trainers: dict[PoolIdentity, TrainerReport] = field(default_factory=dict)
    kept: Reconciler | None = None
    looks: int = 0

    def __post_init__(self) -> None:
        self.cluster.time = lambda: self.clock()

    def reconciler(self) -> Reconciler:
        """A new operator, which remembers nothing of the one before; with informers always the same one."""
        if self.kept is not None:
            return self.kept
        clock = lambda: 2.0 * self.looks  # noqa: E731
        objects = RunObjects(self.cluster, None if self.feed is None else self.feed.informers, clock)
        observer = Observer(
            objects,
            self.artifacts,
            self.poller,
            self.settings,
            token_key=self.token_key,
            storage_key=STORAGE_KEY,
            clock=clock,
            pool_problems=self.pool_problems,
            pool_trainers=self.pool_trainers,
            # As it is at the time of the question: namespaces become tenants.
            tenancy_problem=lambda namespace: self.tenancy_problem(namespace),
        )
        applier = Applier(objects.cluster, self.artifacts, UsageLog(self.artifacts, USAGE_ROOT, "rlrun-system.rlrun"))
        queue = self.queue or AdmissionQueue(self.settings, lambda _: None)
        own = lambda: self.clock()  # noqa: E731
        self.cluster.clock = ClusterClock(own, lambda: own().timestamp())
        made = Reconciler(observer, applier, self.settings, self.cluster.clock, queue)
        self.kept = None if self.feed is None else made
        return made

    def follow(self) -> "World":
        """Let a new operator follow the cluster with informers."""
        self.kept, self.feed = None, InformerFeed(self.cluster)
        return self

    async def reconcile(self, times: int = 1, name: str = "reverse", *, after: float = 0.0) -> float | None:
        """Reconcile a run so many times, after these seconds."""
        self.clock.advance(after)
        again = None
        for _ in range(times):
            self._tell_changes()
            self.looks += 1
            again = await self.reconciler().reconcile(RunKey("team", name))
            # What comes after this was not done by the operator.
            self._tell_changes()
        return again

    def _tell_changes(self) -> None:
        if self.feed is not None:
            self.feed.deliver()

    async def phase(self, times: int = 1, *, after: float = 0.0) -> str:
        """The phase after so many reconciles."""
        await self.reconcile(times, after=after)
        return str(self.status["phase"])

    async def shown(self, times: int = 1, *, after: float = 0.0) -> tuple[str | None, str | None]:
        """The phase and its reason after so many reconciles."""
        await self.reconcile(times, after=after)
        return self.status["phase"], self.status.get("reason")

    async def written(self, times: int = 1, *, after: float = 0.0) -> int:
        """The number of writes of so many reconciles."""
        before = self.cluster.writes
        await self.reconcile(times, after=after)
        return self.cluster.writes - before

    async def put(self, obj: Obj, times: int = 1) -> float | None:
        """Somebody else writes an object, and the operator reconciles."""
        self.cluster.put(obj)
        return await self.reconcile(times)

    async def hear(self, answer: RunStatus | None, times: int = 1) -> float | None:
        """The operator reconciles while the orchestrator gives this answer."""
        self.poller.answer = answer
        return await self.reconcile(times)

    async def change(self, times: int = 1, /, **spec: Any) -> float | None:
        """The user changes the spec, and the operator reconciles."""
        self.change_spec(**spec)
        return await self.reconcile(times)

    async def train(self, step: int = 3, **report: Any) -> None:
        """As far as the orchestrator reporting this step."""
        await self.start()
        await self.hear(training(step, **report))

    @property
    def run(self) -> Obj:
        return self.cluster.held("RLRun", "reverse")

    @property
    def status(self) -> Obj:
        return dict(self.run.get("status") or {})

    @property
    def config(self) -> Obj:
        """The configuration of the attempt."""
        return dict(json.loads(self.cluster.held("ConfigMap", "reverse-config")["data"]["run.json"]))

    def write_config(self, content: Obj | str) -> None:
        """Somebody changes the configuration of the attempt."""
        text = content if isinstance(content, str) else json.dumps(content)
        held = self.cluster.held("ConfigMap", "reverse-config")
        self.cluster.put({**held, "data": {**held["data"], "run.json": text}})

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
