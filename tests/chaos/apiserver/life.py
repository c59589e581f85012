"""The life of a run against a real API server: user, node, trainer and orchestrator are played, tick by tick.

As at the unit level, what is played depends on what is there. The operator is whatever the scenario starts: a
reconciler in this process, whose every call passes a gate, or a process of its own.
"""

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun.kube.kinds import RLRUN
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.storage.errors import NotFound
from rlrun.storage.manifest import ArtifactKind

from tests.chaos import invariants
from tests.chaos.apiserver.place import Obj, Place, Site
from tests.chaos.invariants import Expected, Picture, Stored
from tests.chaos.scenario import Hung, Lost, require

MAX_STEPS = 4
SPEC: dict[str, Any] = {
    "maxSteps": MAX_STEPS,
    "checkpoints": {"interval": 1, "keepCloud": 1},
    "adapters": {"interval": 2, "keepLast": 1},
    "artifactPolicy": "Delete",
}
LIFE_SECONDS = 180.0
SETTLE_SECONDS = 30.0
"""Seconds that the user waits for retention and the end of the pods before deleting the finished run."""


@dataclass
class Life:
    """What has happened so far in the life of one run; ask `tick` to go on."""

    site: Site
    step: int = 0
    killed_trainer: bool = False
    deleted: bool = False
    finished: Obj | None = None
    uid: str = ""
    answer: RunStatus | None = None
    """Status that the orchestrator reports; None while no orchestrator runs."""
    trainer: str = ""
    made: dict[str, set[int]] = field(default_factory=lambda: {kind: set() for kind in invariants.CATALOGUE})
    """Steps that were uploaded, by kind of their object."""
    seen: Picture | None = None
    """Everything as it was when the run was deleted."""
    status: Obj = field(default_factory=dict)
    """The run's status as it was last seen."""
    violations: list[str] = field(default_factory=list)
    """Violations found so far."""
    _began: float = field(default_factory=time.monotonic)
    _ended: float = 0.0

    async def tick(self) -> None:
        """Play one tick of user, node, trainer and orchestrator: everything except the operator."""
        site = self.site
        run = await site.run()
        if run is None:
            if not self.uid:
                await site.create_run(**SPEC)
            else:
                await site.play_node()
            return
        self.uid = run["metadata"]["uid"]
        status = run.get("status") or {}
        self.violations += invariants.regressed(self.status, status)
        self.status, phase = status, status.get("phase")
        if phase in invariants.FINISHED and not self.deleted:
            await site.play_node()
            self._ended = self._ended or time.monotonic()
            self.seen = await self.picture()
            self.finished = self.seen.run("reverse")
            if self.unsettled() and time.monotonic() - self._ended < SETTLE_SECONDS:
                return
            await site.cluster.delete(RLRUN, site.namespace, "reverse")
            self.deleted = True
            return
        await site.play_node()
        if self.deleted or phase is None:
            return
        await self._work(run)

    async def _work(self, run: Obj) -> None:
        site = self.site
        pods = {role: await site.pod_of(role) for role in ("trainer", "inference", "environment", "orchestrator")}
        if pods["orchestrator"] is None:
            self.answer = None
            return
        trainer = pods["trainer"]
        if trainer is None or any(p is None for p in pods.values()):
            return
        if self.step == 2 and not self.killed_trainer:
            self.killed_trainer = True
            await site.kill_pod(trainer["metadata"]["name"])
            return
        if trainer["metadata"]["uid"] != self.trainer:
            self.trainer = trainer["metadata"]["uid"]
        elif self.step < MAX_STEPS:
            self.step += 1
            self._upload(run, ArtifactKind.checkpoint)
            if self.step % 2 == 0:
                self._upload(run, ArtifactKind.adapter)
        last = RunStatus(phase=RunPhase.running, step=self.step, max_steps=MAX_STEPS, reward=0.5)
        self.answer = last
        if self.step == MAX_STEPS:
            done = last.model_copy(update={"phase": RunPhase.completed})
            await site.end_orchestrator(done.to_json_dict())
            self.answer = None

    def _upload(self, run: Obj, kind: ArtifactKind) -> None:
        layout = self.site.layout(run)
        uri = layout.checkpoint(self.step) if kind is ArtifactKind.checkpoint else layout.adapter(self.step)
        files = {"adapter.safetensors": f"{self.uid} {self.step}".encode() * 100}
        self.site.store.upload_artifact(files, uri, kind, step=self.step, policy_version=self.step, once=True)
        self.made["RLCheckpoint" if kind is ArtifactKind.checkpoint else "RLAdapter"].add(self.step)

    async def over(self) -> bool:
        """Whether the run was deleted and nothing of it is left."""
        if not self.deleted or await self.site.run() is not None:
            return False
        return not [o for o in await self.site.objects() if o["metadata"].get("labels", {}).get("rlrun.dev/run")]

    def check_time(self) -> None:
        """Raises Hung when the life takes too long."""
        if time.monotonic() - self._began > LIFE_SECONDS:
            raise Hung(f"not over after {LIFE_SECONDS:.0f} s, at step {self.step}")

    async def check_moment(self) -> None:
        """Check the invariants that hold at every moment."""
        seen = await self.picture()
        require([*self.violations, *invariants.partly_ready(seen), *invariants.unprotected(seen)])

    def unsettled(self) -> list[str]:
        """Return the violated invariants of the finished run before its deletion; the operator may still be writing."""
        if self.finished is None or self.seen is None:
            return ["the run was never finished"]
        root = self.site.layout(self.finished).root.key
        found = invariants.uncatalogued(self.seen, root) + invariants.orphans(self.seen)
        found += invariants.counters(self.finished, self.seen, Expected())
        for kind, keep in (
            ("RLCheckpoint", SPEC["checkpoints"]["keepCloud"]),
            ("RLAdapter", SPEC["adapters"]["keepLast"]),
        ):
            found += invariants.retention(self.seen, root, kind, keep, self.made[kind])
        return found

    async def picture(self) -> Picture:
        """Read objects before files: an artifact that becomes Ready in between must not appear incomplete."""
        objects = await self.site.objects()
        files, manifests = {}, {}
        if self.uid:
            root = self.site.layout({"metadata": {"uid": self.uid}}).root
            store = self.site.store
            for name, size in await asyncio.to_thread(store.list_files, root):
                try:
                    data = await asyncio.to_thread(store.get_bytes, root / name)
                except NotFound:
                    continue  # It went after it was listed.
                files[f"{root.key}/{name}"] = Stored(size, hashlib.sha256(data).hexdigest())
                folder, _, last = name.rpartition("/")
                if last == "manifest.json":
                    manifest = await asyncio.to_thread(store.read_manifest, root / folder)
                    if manifest is not None:
                        manifests[f"{root.key}/{folder}"] = manifest
        return Picture(objects, files, manifests)

    async def check_end(self, restarts: int | tuple[int, int] = 1) -> None:
        """All invariants, after the run is gone; `restarts` is how many are counted of the one that happened."""
        if self.finished is None or self.seen is None:
            raise Lost("the run was never finished")
        seen = await self.picture()
        found = [*self.violations, *invariants.badly_ended(self.finished, {"Completed": ["Completed"]})]
        found += self.unsettled() + invariants.partly_ready(self.seen)
        found += invariants.counters(self.finished, self.seen, Expected(restarts, run_restarts=0, attempts=1))
        found += invariants.orphans(seen)
        found += invariants.left_after_deletion(seen, self.site.layout(self.finished).root.key)
        require(dict.fromkeys(found))


async def new_site(place: Place) -> tuple[Site, AsyncApiTransport]:
    """A namespace of the scenario's own, and the connection to be closed at its end."""
    namespace = await asyncio.to_thread(place.new_name)
    transport = AsyncApiTransport(await load_configuration(str(place.control_plane.kubeconfig)))
    return Site(namespace, transport, place.s3.store(), place.s3.bucket), transport
