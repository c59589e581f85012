"""Trainer of a run: sessions, steps that are idempotent, checkpoints that appear in the store."""

import asyncio
from typing import Any

from aiohttp import web
from rlrun.protocol.problem import Problem
from rlrun.protocol.train_batch import TrainBatch
from rlrun.protocol.trainer import (
    ORCHESTRATOR_HEADER,
    CheckpointRequest,
    SessionSpec,
    SessionState,
    StepResult,
)
from rlrun.service.errors import ProblemError
from rlrun.service.server import read_batch
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun_trainer.sessions.session_owners import SessionOwners

from tests.support.fake_s3 import MODIFIED
from tests.support.policy_refs import policy
from tests.support.run_store import RunStore

CHECKPOINT_MANIFEST = Manifest(kind=ArtifactKind.checkpoint, files=[], created_at=MODIFIED).model_dump_json().encode()


class FakeTrainer:
    """Sessions, steps that are idempotent, checkpoints that appear in the store."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.spec: SessionSpec | None = None
        self.step = 0
        self.lives = 0
        self.results: dict[int, StepResult] = {}
        self.batches: list[tuple[int, TrainBatch]] = []
        self.opened: list[SessionSpec] = []
        self.checkpoints: set[int] = set()
        self.adapters: set[int] = set()
        self.adapter_states: list[dict[str, Any]] = []
        self.saved: dict[str, dict[str, Any]] = {}
        self.resumed_state: dict[str, Any] | None = None
        self.remembers = True
        """Whether a checkpoint that it saves on its way out tells how its newest step went."""
        self.made: dict[str, StepResult | None] = {}
        self.told: StepResult | None = None
        self.die_before: set[int] = set()
        """Steps at which the trainer is replaced, once each, instead of doing them."""
        self.owners = SessionOwners()
        self.superseded_before: set[int] = set()
        """Steps before which another orchestrator opens the session and stores its state, once each."""
        self.stored_by_another = b""
        self.answer: tuple[int, Problem | StepResult] | None = None
        """What every step is answered with instead, when set."""
        self.hold: set[int] = set()
        """Steps that are made and whose answer nobody gets until `released` is set."""
        self.computing: set[int] = set()
        """Steps that are not made until `released` is set; whoever asked for them may be gone by then."""
        self.at_work: set[asyncio.Task[web.Response]] = set()
        """Steps that this life has begun or will begin."""
        self.asked = asyncio.Event()
        """It has begun one of these."""
        self.turn = asyncio.Lock()
        self.released = asyncio.Event()
        self.preempted_before: set[int] = set()
        """Steps at which it is told to end, once each, instead of doing them."""
        self.preempted_after: set[int] = set()
        """Steps that it makes and whose answer it does not live to give."""
        self.copied_after: set[int] = set()
        """Steps of which it makes a recovery copy: the trainer that follows it starts from the newest one."""
        self.copies: dict[int, dict[str, Any]] = {}
        """States in the recovery copies, by step."""
        self.known: dict[str, Any] = {}
        """Newest state of the orchestrator."""
        self.behind: set[int] = set()
        """Steps whose copies it has no room for."""
        self.die_at_checkpoint: set[int] = set()
        """Steps at whose checkpoint the trainer is replaced, once each, instead of making it."""
        self.copying = 0.0
        """Seconds that a copy for a checkpoint takes."""
        self.unpublished = False
        """The newest step is made, and its policy not published until the step is asked for again."""
        self.warnings: list[Problem] = []
        self.step_warnings: list[Problem] = []
        """Findings of its steps, which it does not have when the session is opened."""
        """Findings about model and adapter in every state of the session."""

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_put("/sessions/{session}", self.open)
        app.router.add_get("/sessions/{session}", self.get)
        app.router.add_post("/sessions/{session}/steps/{step}", self.train)
        app.router.add_post("/sessions/{session}/checkpoints/{step}", self.checkpoint)
        app.router.add_post("/sessions/{session}/adapters/{step}", self.adapter)
        return app

    def restart(self) -> None:
        self.spec, self.results, self.lives = None, {}, self.lives + 1
        for step in self.at_work - {asyncio.current_task()}:
            step.cancel()

    def preempt(self) -> None:
        """SIGTERM: a checkpoint of where it is, which knows its newest step and nothing of the orchestrator's, and the
        end.
        """
        assert self.spec is not None
        place = RunLayout(S3Uri.parse(self.spec.run_uri)).checkpoint(self.step)
        if str(place) not in self.saved:
            self.saved[str(place)] = {}
            if self.remembers:
                self.made[str(place)] = self.results.get(self.step - 1)
            self.store.objects[str(place / "manifest.json")] = CHECKPOINT_MANIFEST
            self.checkpoints.add(self.step)
        self.restart()

    def state(self) -> SessionState:
        assert self.spec is not None
        before = self.step - 1 if self.unpublished else self.step
        return SessionState(
            step=self.step,
            policy=policy(before, self.spec.run_uri, self.lineage),
            checkpoints=sorted(step for step in self.checkpoints if step >= self.resumed_at),
            adapters=sorted(step for step in self.adapters if step >= self.resumed_at),
            orchestrator_state=self.resumed_state,
            warnings=self.warnings,
            last=None if self.unpublished else self.results.get(self.step - 1, self._told_of_this_step),
        )

    @property
    def _told_of_this_step(self) -> StepResult | None:
        return self.told if self.told is not None and self.told.step == self.step else None

    @property
    def lineage(self) -> str:
        # The adapter a session starts from is the checkpoint's; what is trained after a restart is another one.
        return "" if self.lives == 0 or self.step == self.resumed_at else str(self.lives)

    async def open(self, request: web.Request) -> web.Response:
        spec = SessionSpec.model_validate_json(await request.read())
        self.owners.take(request.match_info["session"], request.headers.get(ORCHESTRATOR_HEADER, ""))
        self.opened.append(spec)
        if self.spec is None:
            self.spec = spec
            self.step = int(spec.resume_from.rsplit("-", 1)[1]) if spec.resume_from else 0
            self.resumed_at = self.step
            self.resumed_state = self.saved.get(spec.resume_from or spec.warm_start_from or "")
            self.told = self.made.get(spec.resume_from or "")
            copy = max(self.copies, default=0)
            if copy > self.step:
                self.step = self.resumed_at = copy
                self.resumed_state, self.told = self.copies[copy], self.made.get(f"copy {copy}")
        elif spec.max_steps > self.spec.max_steps:
            self.spec = self.spec.model_copy(update={"max_steps": spec.max_steps})
        return web.json_response(self.state().to_json_dict())

    async def get(self, request: web.Request) -> web.Response:
        if self.spec is None:
            return missing()
        return web.json_response(self.state().to_json_dict())

    async def train(self, request: web.Request) -> web.Response:
        # As the real one, which makes the step whoever hangs up meanwhile, but not after its own death.
        step = asyncio.create_task(self._in_turn(request))
        self.at_work.add(step)
        step.add_done_callback(self.at_work.discard)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            if not step.cancelled():
                raise
            return hung_up(request)

    async def _in_turn(self, request: web.Request) -> web.Response:
        async with self.turn:
            return await self._train(request)

    async def _train(self, request: web.Request) -> web.Response:
        step = int(request.match_info["step"])
        if self.spec is not None and step in self.die_before:
            self.die_before.discard(step)
            self.restart()
            return hung_up(request)
        if self.spec is not None and step in self.preempted_before:
            self.preempted_before.discard(step)
            self.preempt()
            return hung_up(request)
        if self.spec is None:
            return missing()
        if step in self.superseded_before:
            self.superseded_before.discard(step)
            self._supersede(request, self.spec)
        try:
            self.owners.check(request.match_info["session"], request.headers.get(ORCHESTRATOR_HEADER, ""))
        except ProblemError as error:
            return web.json_response(error.problem.to_json_dict(), status=error.status)
        if self.answer is not None:
            return web.json_response(self.answer[1].to_json_dict(), status=self.answer[0])
        if step in self.results:
            self.unpublished = False
            return web.json_response(self.results[step].to_json_dict())
        if step >= self.spec.max_steps:
            return web.json_response(Problem(reason="RunComplete", message=str(step)).to_json_dict(), status=422)
        if step != self.step:
            return web.json_response(Problem(reason="StepConflict", message=str(step)).to_json_dict(), status=409)
        batch = await read_batch(request)
        await asyncio.sleep(0.02)
        if step in self.computing:
            self.asked.set()
            await self.released.wait()
        self.batches.append((step, batch))
        self.step += 1
        metrics = {"loss/mean": 0.1, "mismatch_kl/all/mean": 0.001 * (step + 1)}
        found = self.step_warnings
        result = StepResult(
            step=self.step,
            policy=self.state().policy,
            metrics=metrics,
            batch_id=batch.batch_id,
            warnings=found,
            recovery_copy=self.step in self.copied_after,
        )
        self.results[step] = result
        if result.recovery_copy:
            self.copies[self.step] = self.known
            self.made[f"copy {self.step}"] = result.model_copy(update={"recovery_copy": False})
        if step in self.preempted_after:
            self.preempted_after.discard(step)
            self.preempt()
            return hung_up(request)
        if step in self.hold:
            await self.released.wait()
        return web.json_response(result.to_json_dict())

    def _supersede(self, request: web.Request, spec: SessionSpec) -> None:
        self.owners.take(request.match_info["session"], "another")
        places = [f"{spec.run_uri}/orchestrator/state-00000{process}.json" for process in (1, 2)]
        self.stored_by_another = self.store.objects[places[0]]
        self.store.objects[places[1]] = self.stored_by_another

    async def checkpoint(self, request: web.Request) -> web.Response:
        if self.spec is None:
            return missing()
        step = int(request.match_info["step"])
        if step in self.behind:
            return behind()
        body = CheckpointRequest.model_validate_json(await request.read())
        life = self.lives
        if step in self.die_at_checkpoint:
            self.die_at_checkpoint.discard(step)
            self.restart()
        await asyncio.sleep(self.copying)
        if self.lives != life:
            return hung_up(request)
        place = RunLayout(S3Uri.parse(self.spec.run_uri)).checkpoint(step)
        self.saved[str(place)] = self.known = body.orchestrator_state
        self.store.objects[str(place / "manifest.json")] = CHECKPOINT_MANIFEST
        self.checkpoints.add(step)
        return web.json_response(self.state().to_json_dict(), status=202)

    async def adapter(self, request: web.Request) -> web.Response:
        if self.spec is None:
            return missing()
        step = int(request.match_info["step"])
        if step in self.behind:
            return behind()
        self.adapter_states.append(CheckpointRequest.model_validate_json(await request.read()).orchestrator_state)
        self.adapters.add(step)
        return web.json_response(self.state().to_json_dict(), status=202)


def missing() -> web.Response:
    return web.json_response(Problem(reason="SessionMissing", message="open it again").to_json_dict(), status=404)


def behind() -> web.Response:
    problem = Problem(reason="UploadsBehind", message="2 uploads of this run still wait.")
    return web.json_response(problem.to_json_dict(), status=503)


def hung_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
