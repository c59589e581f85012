"""Programs of clients at the trainer of a shared pool, over HTTP."""

import asyncio
import gzip
import hashlib
import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from rlrun.api.base.received import parse
from rlrun.constants import OUT_OF_MEMORY, Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.client_command import (
    CONTENT_TYPE,
    MAX_COMMAND_BYTES,
    CommandResult,
    ErrorCategory,
    ForwardBackward,
)
from rlrun.protocol.client_run import SavedStates, SaveKind
from rlrun.protocol.engine_proof import NONCE_HEADER, PROOF_HEADER, is_proven
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.shared_pool import ClientActivity, TrainerOrder
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun.storage.store import AccessDenied, Unreachable
from rlrun_trainer.runtime.compute_thread import Units
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions import client_runs, client_session
from typing_extensions import override

from tests.support.client_commands import forward_backward, optim_step, read_result, save
from tests.support.waiting import until
from tests.unit.rlrun_trainer.conftest import ONE, TWO, Caller, ClientSlots, GrantedStore, Pool, TwoSlots

ALICE, BOB, CAROL = (Caller(uid, is_client=True) for uid in ("alice", "bob", "carol"))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> TwoSlots:
    monkeypatch.setattr(client_runs, "wait_after", lambda _: 0.01)
    return ClientSlots()


@dataclass
class Program:
    """A client's program, which numbers its commands."""

    pool: Pool
    caller: Caller
    sent: int = 0

    async def send(self, body: bytes, number: int | None = None) -> tuple[int, Any]:
        self.sent = self.sent + 1 if number is None else number
        return await self.pool.call(self.caller.token, "POST", self._path("commands", self.sent), data=body)

    async def answer(self, number: int, wait: float = 30) -> tuple[int, Any]:
        url = f"{self.pool.url}{self._path('results', number)}?wait={wait}"
        async with self.pool.http.get(url, headers=bearer(self.caller.token)) as response:
            if response.content_type == CONTENT_TYPE:
                return response.status, await response.read()
            return response.status, await response.json()

    async def result(self, number: int | None = None) -> tuple[CommandResult, list[list[float]]]:
        status, body = await self.answer(number or self.sent)
        assert status == 200, body
        return read_result(body)

    async def do(self, body: bytes) -> CommandResult:
        assert (await self.send(body))[0] == 202
        return (await self.result())[0]

    async def error(self, body: bytes) -> tuple[ErrorCategory, str]:
        error = (await self.do(body)).error
        assert error is not None
        return error.category, error.message

    def _path(self, kind: str, number: int) -> str:
        return f"/sessions/{self.caller.uid}/{kind}/{number}"

    @property
    def layout(self) -> RunLayout:
        return RunLayout(S3Uri.parse(self.caller.folder))


async def joined(pool: Pool, *callers: Caller) -> list[Program]:
    assert (await pool.order(*callers))[0] == 200
    return [Program(pool, caller) for caller in callers]


async def activities(pool: Pool, *callers: Caller) -> dict[str, ClientActivity]:
    _, body = await pool.order(*callers)
    return {each["uid"]: ClientActivity.model_validate(each) for each in body.get("clients", [])}


def slots(pool: Pool) -> ClientSlots:
    assert isinstance(pool.backend, ClientSlots)
    return pool.backend


def names_in(store: GrantedStore, program: Program) -> SavedStates:
    return parse(SavedStates, store.get_bytes(program.layout.saved_states))


async def test_a_program_trains_saves_and_reads_its_results(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    before = (await activities(pool, ALICE))[ALICE.uid]
    for body in (forward_backward([1, 2], [3]), forward_backward([4]), optim_step(0.5), save("a")):
        assert await alice.send(body) == (202, "")
    first, logprobs = await alice.result(1)
    assert (first.error, logprobs) == (None, [[-1.0, -2.0], [-3.0]])
    assert (first.metrics["loss:sum"], math.isnan(first.metrics["odd:mean"]), first.widths) == (6.0, True, [])
    assert (await alice.result(3))[0].metrics == {"grad_norm": 1.0}
    assert (await alice.result(4))[0].error is None
    assert slots(pool).weights[ALICE.uid] == 5.0
    store = pool.stores[0]
    manifest = store.read_manifest(alice.layout.checkpoint(4))
    assert manifest is not None
    assert (manifest.kind, manifest.step, manifest.details["name"]) == (ArtifactKind.checkpoint, 4, "a")
    assert "expiresAt" not in manifest.details
    assert names_in(store, alice).weights["a"].step == 4
    state = (await activities(pool, ALICE))[ALICE.uid]
    assert (state.is_open, state.calls, state.updates, state.problem) == (True, 4, 1, None)
    assert state.saves == before.saves + 1
    metrics = (await pool.call(None, "GET", "/metrics"))[1]
    assert f'rlrun_pool_tokens_total{{kind="trained",run="{ALICE.uid}"}} 4.0' in metrics
    assert f'trainer_step{{session="{ALICE.uid}"}} 1.0' in metrics


async def test_a_failed_command_changes_nothing_and_the_next_one_runs(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(forward_backward([1]))
    assert await alice.error(forward_backward([2], [1000])) == (ErrorCategory.user, "datums[1]: tokens")
    assert (await alice.error(b"no command"))[0] is ErrorCategory.user
    await alice.do(forward_backward([5], forward_only=True))
    await alice.do(optim_step(1.0))
    assert slots(pool).weights[ALICE.uid] == 1.0


async def test_memory_that_does_not_suffice_and_faults_are_results(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    (alice,) = await joined(pool, ALICE)
    full = ProblemError.of(OUT_OF_MEMORY, Reason.TRAINER_OUT_OF_MEMORY, "send less")
    for raised, category in ((full, ErrorCategory.user), (RuntimeError("broken"), ErrorCategory.server)):

        def fail(*_: object, raised: Exception = raised) -> None:
            raise raised

        monkeypatch.setattr(slots(pool), "optim_step", fail)
        for _ in range(4):
            assert (await alice.error(optim_step()))[0] is category
    assert (await activities(pool, ALICE))[ALICE.uid].calls == 8


async def test_commands_wait_for_a_free_slot_and_the_reason_is_told(pool: Pool) -> None:
    for caller in (ONE, TWO):
        assert (await pool.open(caller))[0] == 200
    await pool.order(ONE, TWO, CAROL)
    carol = Program(pool, CAROL)
    assert (await carol.send(forward_backward([1])))[0] == 202
    await until(lambda: pool.trainer._clients._clients[CAROL.uid].opening_problem is not None)
    status, pending = await carol.answer(1, wait=0)
    assert (status, pending["state"]) == (202, "paused_capacity")
    assert "slots are in use" in pending["reason"]
    state = (await activities(pool, ONE, TWO, CAROL))[CAROL.uid]
    assert (state.is_open, state.problem and state.problem.reason) == (False, "NoFreeSlot")
    await pool.order(ONE, CAROL)
    assert (await carol.result(1))[0].error is None


async def test_a_program_that_leaves_is_saved_closed_and_continues_later(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    for body in (forward_backward([3]), optim_step(1.0), forward_backward([1], forward_only=True)):
        await alice.do(body)
    await pool.order()
    assert (await alice.send(optim_step()))[0] == 401
    await until(lambda: not pool.sessions.names())
    assert pool.stores[0].is_complete(alice.layout.checkpoint(3))
    await pool.order(ALICE)
    assert (await alice.answer(3))[0] == 404
    assert (await alice.send(forward_backward([2]), 4))[0] == 202
    assert (await alice.result(4))[0].error is None
    await alice.do(optim_step(1.0))
    assert slots(pool).weights[ALICE.uid] == 5.0
    state = (await activities(pool, ALICE))[ALICE.uid]
    assert (state.calls, state.updates) == (5, 2)


async def test_the_gradient_of_a_step_that_was_begun_survives_the_session(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(forward_backward([3]))
    await pool.order()
    await until(lambda: not pool.sessions.names())
    await pool.order(ALICE)
    for body in (forward_backward([4]), optim_step(1.0)):
        assert (await alice.do(body)).error is None
    assert slots(pool).weights[ALICE.uid] == 7.0


class GatedSlots(ClientSlots):
    """Model whose first unit of a command with two datums waits, after it has added to the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = {caller.uid: threading.Event() for caller in (ALICE, BOB)}
        self.begun: list[str] = []

    @override
    def forward_backward(
        self, name: str, spec: SessionSpec, command: ForwardBackward, buffers: memoryview
    ) -> Units[tuple[dict[str, float], list[bytes]]]:
        if len(command.datums) > 1:
            self.gradients[name] = self.gradients.get(name, 0) + 1000
            self.begun.append(name)
            assert self.gates[name].wait(30)
            yield
        return (yield from super().forward_backward(name, spec, command, buffers))


@pytest.mark.parametrize("backend", [GatedSlots()], ids=["gated"])
async def test_no_checkpoint_contains_a_part_of_a_command(pool: Pool) -> None:
    gated = pool.backend
    assert isinstance(gated, GatedSlots)
    alice, bob = await joined(pool, ALICE, BOB)
    for program in (alice, bob):
        await program.do(forward_backward([1]))
    await alice.send(forward_backward([10], [20]))
    await until(lambda: gated.begun == [ALICE.uid])
    await bob.send(forward_backward([10], [20]))
    await until(lambda: BOB.uid in pool.sessions._compute._waiting)
    gated.gates[ALICE.uid].set()
    await until(lambda: gated.begun == [ALICE.uid, BOB.uid])
    await pool.sessions.rescue(0.05)
    stopping = asyncio.create_task(pool.sessions.stop(30.0))
    await asyncio.sleep(0.05)
    gated.gates[BOB.uid].set()
    await stopping
    await pool.sessions.drain(1.0)
    assert not pool.stores[0].is_complete(alice.layout.checkpoint(1))


async def test_a_run_that_is_back_before_its_session_closes_keeps_its_commands(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(forward_backward([1]))
    async with pool.sessions._turn(ALICE.uid):
        await pool.order()
        await pool.order(ALICE)
    await until(lambda: not pool.sessions._removals)
    assert (await alice.result(1))[0].error is None
    assert (await alice.do(optim_step())).error is None


@pytest.mark.parametrize(
    "settings", [TrainerSettings(slots=2, shutdown_seconds=30, recovery_seconds=1e-9)], ids=["copies"]
)
async def test_after_a_kill_the_session_continues_after_its_newest_recovery_copy(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    for body in (forward_backward([3]), optim_step(1.0), forward_backward([1])):
        await alice.do(body)
    await until(lambda: pool.stores[0].is_complete(alice.layout.recovery_copy(2)))
    # As after a kill: another process finds only what is in S3.
    session = pool.sessions._open.pop(ALICE.uid)
    session.reject_steps()
    slots(pool).close_slot(ALICE.uid)
    slots(pool).weights[ALICE.uid] = -1.0
    await pool.order(ALICE)
    assert (await alice.answer(3))[0] == 404
    alice.sent = 2
    assert (await alice.do(forward_backward([1]))).error is None
    assert slots(pool).weights[ALICE.uid] == 3.0
    state = (await activities(pool, ALICE))[ALICE.uid]
    assert (state.calls, state.updates) == (3, 1)


async def test_names_are_used_once_unless_they_may_be_overwritten(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    assert (await alice.do(save("a", user_metadata={"loss": 1.5}))).error is None
    category, message = await alice.error(save("a"))
    assert (category, "'a' was already used for weights by call 1" in message) == (ErrorCategory.user, True)
    assert (await alice.do(save("a", SaveKind.sampler_weights))).error is None
    assert (await alice.do(save("a", overwrite=True, ttl_seconds=3600))).error is None
    store = pool.stores[0]
    names = names_in(store, alice)
    assert (names.weights["a"].step, names.sampler_weights["a"].step) == (4, 3)
    expires = names.weights["a"].expires_at
    assert expires is not None
    assert round((expires - names.weights["a"].time).total_seconds()) == 3600
    details = [store.read_manifest(place) for place in (alice.layout.checkpoint(1), alice.layout.checkpoint(4))]
    assert all(isinstance(each, Manifest) for each in details)
    assert details[0] is not None
    assert details[0].details["userMetadata"] == {"loss": 1.5}
    assert details[1] is not None
    assert details[1].details["expiresAt"] == expires.isoformat()
    adapter = store.read_manifest(alice.layout.adapter(3))
    assert adapter is not None
    assert (adapter.kind, adapter.details["name"]) == (ArtifactKind.adapter, "a")


async def test_the_name_of_an_expired_state_is_free(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(save("a", ttl_seconds=3600))
    assert "used for weights by call 1" in (await alice.error(save("a")))[1]
    states = pool.sessions._open[ALICE.uid]._saved._states  # type: ignore[attr-defined]
    states.weights["a"].expires_at = states.weights["a"].time
    assert (await alice.do(save("a"))).error is None
    assert names_in(pool.stores[0], alice).weights["a"].step == 3


async def test_the_name_of_a_deleted_state_is_free(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(save("a"))
    store = pool.stores[0]
    store.delete_prefix(alice.layout.checkpoint(1))
    store.fail = Unreachable("no route to S3")
    assert (await alice.error(save("a")))[0] is ErrorCategory.user, "S3 does not say that it is deleted"
    store.fail = None
    assert (await alice.do(save("a"))).error is None
    assert names_in(store, alice).weights["a"].step == 3


async def test_names_are_known_after_a_restart(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(save("a"))
    await pool.order()
    await until(lambda: not pool.sessions.names())
    await pool.order(ALICE)
    assert "used for weights by call 1" in (await alice.error(save("a")))[1]


async def test_saves_that_were_not_reported_before_a_restart_change_the_number_of_saves(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    before = (await activities(pool, ALICE))[ALICE.uid].saves
    await alice.do(save("a"))
    await pool.order()
    await until(lambda: not pool.sessions.names())
    await pool.order(ALICE)
    await alice.error(save("a"))
    assert (await activities(pool, ALICE))[ALICE.uid].saves != before


async def test_a_save_delays_no_other_command_and_no_save_displaces_another(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(forward_backward([1]))
    pool.stores[0].may_upload.clear()
    for name in ("a", "b", "c"):
        await alice.send(save(name))
    assert (await alice.do(optim_step())).error is None
    assert (await alice.answer(2, wait=0))[0] == 202
    pool.stores[0].may_upload.set()
    assert [(await alice.result(number))[0].error for number in (2, 3, 4)] == [None] * 3
    assert names_in(pool.stores[0], alice).weights.keys() == {"a", "b", "c"}


async def test_a_save_that_s3_does_not_take_fails_and_training_goes_on(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(forward_backward([1]))
    monkeypatch.setattr(client_session, "SAVE_SECONDS", 0.2)

    def fail(*_: object, **__: object) -> Manifest:
        raise Unreachable("no route to S3")

    upload = pool.stores[0].upload_artifact
    monkeypatch.setattr(pool.stores[0], "upload_artifact", fail)
    category, message = await alice.error(save("a"))
    assert category is ErrorCategory.server
    assert "'a' was not stored in S3 within" in message
    assert "no route to S3" in message
    assert (await alice.do(optim_step(1.0))).error is None
    assert (await activities(pool, ALICE))[ALICE.uid].problem is not None
    monkeypatch.setattr(pool.stores[0], "upload_artifact", upload)
    session = pool.sessions._open[ALICE.uid]
    session.uploads.try_again()
    monkeypatch.setattr(client_session, "SAVE_SECONDS", 30.0)
    assert (await alice.do(save("a"))).error is None, "the name is free"
    assert names_in(pool.stores[0], alice).weights["a"].step == 4


async def test_names_that_s3_does_not_take_are_tried_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(forward_backward([1]))
    put, failures = pool.stores[0].put_bytes, [1]

    def fail_once(uri: S3Uri, *arguments: Any, **options: Any) -> None:
        if uri == alice.layout.saved_states and failures:
            failures.pop()
            raise Unreachable("no route to S3")
        put(uri, *arguments, **options)

    monkeypatch.setattr(pool.stores[0], "put_bytes", fail_once)
    session = pool.sessions._open[ALICE.uid]
    session.uploads.wait = lambda _: 0.01
    assert (await alice.do(save("a"))).error is None
    assert not failures
    assert names_in(pool.stores[0], alice).weights["a"].step == 2


async def published(program: Program) -> PolicyRef:
    result = await program.do(save(None, SaveKind.sampler_weights))
    assert (result.error, result.policy is None) == (None, False)
    assert result.policy is not None
    return result.policy


async def test_a_save_without_a_name_publishes_a_policy_of_which_the_newest_are_kept(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    saves = (await activities(pool, ALICE))[ALICE.uid].saves
    store, refs = pool.stores[0], []
    for _ in range(4):
        for body in (forward_backward([1]), optim_step(1.0)):
            await alice.do(body)
        refs.append(await published(alice))
    assert [ref.version for ref in refs] == [3, 6, 9, 12]
    first, last = refs[0], refs[-1]
    assert last.uri == str(alice.layout.policy(12, last.digest))
    assert last.digest == hashlib.sha256(repr(4.0).encode()).hexdigest()
    kept = [ref.uri.rsplit("/")[-1] for ref in refs[-ALICE.entry().keep_policies :]]
    await until(lambda: store.list_folders(alice.layout.policies) == kept)
    assert store.read_manifest(S3Uri.parse(first.uri)) is None
    manifest = store.read_manifest(S3Uri.parse(last.uri))
    assert manifest is not None
    assert (manifest.kind, manifest.step, manifest.policy_version) == (ArtifactKind.policy, 12, 12)
    assert (await activities(pool, ALICE))[ALICE.uid].saves == saves
    assert (await alice.send(save(None, SaveKind.sampler_weights), 12))[0] == 202
    assert (await alice.result(12))[0].policy == last, "a repeated command has the same result"


async def test_policies_stay_after_a_restart_and_older_ones_are_deleted_then(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    for body in (forward_backward([1]), optim_step(1.0)):
        await alice.do(body)
    before = [await published(alice), await published(alice)]
    await pool.order()
    await until(lambda: not pool.sessions.names())
    assert all(pool.stores[0].is_complete(S3Uri.parse(ref.uri)) for ref in before)
    await pool.order(ALICE)
    after = await published(alice)
    assert (after.version, after.digest) == (5, before[1].digest)
    kept = [ref.uri.rsplit("/")[-1] for ref in (before[1], after)]
    await until(lambda: pool.stores[0].list_folders(alice.layout.policies) == kept)


async def test_a_named_sampler_has_the_digest_by_which_engines_load_it(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(save("a"))
    result = await alice.do(save("a", SaveKind.sampler_weights))
    digest = hashlib.sha256(repr(0.0).encode()).hexdigest()
    assert result.policy == PolicyRef(version=2, digest=digest, uri=str(alice.layout.adapter(2)))
    names = names_in(pool.stores[0], alice)
    assert (names.sampler_weights["a"].digest, names.weights["a"].digest) == (digest, None)
    assert (await alice.result(1))[0].policy is None


async def test_only_a_sampler_may_have_no_name(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    category, message = await alice.error(save(None))
    assert (category, "A name is required" in message) == (ErrorCategory.user, True)


async def test_a_publication_delays_no_other_command_and_the_third_one_waits(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(forward_backward([1]))
    upload, may_upload = pool.stores[0].upload, threading.Event()

    def slow(*arguments: Any, **options: Any) -> Manifest:
        assert may_upload.wait(30)
        return upload(*arguments, **options)

    monkeypatch.setattr(pool.stores[0], "upload", slow)
    for _ in range(2):
        await alice.send(save(None, SaveKind.sampler_weights))
    assert (await alice.do(optim_step())).error is None
    await alice.send(save(None, SaveKind.sampler_weights))
    await alice.send(optim_step())
    for number in (2, 3, 5, 6):
        assert (await alice.answer(number, wait=0))[0] == 202
    may_upload.set()
    found = [(await alice.result(number))[0] for number in (2, 3, 5, 6)]
    assert [result.error for result in found] == [None] * 4
    assert [result.policy and result.policy.version for result in found] == [2, 3, 5, None]


async def test_a_policy_that_s3_does_not_take_fails_and_training_goes_on(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(forward_backward([1]))
    upload, errors = pool.stores[0].upload, [Unreachable("no route to S3"), AccessDenied("no right")]

    def fail(*_: object, **__: object) -> Manifest:
        raise errors[0]

    monkeypatch.setattr(pool.stores[0], "upload", fail)
    monkeypatch.setattr(client_session, "SAVE_SECONDS", 0.2)
    await alice.send(save(None, SaveKind.sampler_weights))
    session = pool.sessions._open[ALICE.uid]
    assert isinstance(session, client_session.ClientSession)
    await until(lambda: session.problem is not None)
    problem = (await activities(pool, ALICE))[ALICE.uid].problem
    assert problem is None or "no route to S3" in problem.message
    for text in ("within 0 s (policy-v000002", "no right"):
        result = (await alice.result())[0]
        assert result.error is not None
        assert (result.error.category, text in result.error.message) == (ErrorCategory.server, True), result.error
        errors.pop(0)
        if errors:
            await alice.send(save(None, SaveKind.sampler_weights))
    assert (await alice.do(optim_step(1.0))).error is None
    monkeypatch.setattr(pool.stores[0], "upload", upload)
    monkeypatch.setattr(client_session, "SAVE_SECONDS", 30.0)
    assert (await published(alice)).version == alice.sent
    assert (await activities(pool, ALICE))[ALICE.uid].problem is None


async def test_a_session_that_closes_ends_its_publications(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    (alice,) = await joined(pool, ALICE)
    await alice.do(forward_backward([1]))

    def fail(*_: object, **__: object) -> Manifest:
        raise Unreachable("no route to S3")

    monkeypatch.setattr(pool.stores[0], "upload", fail)
    await alice.send(save(None, SaveKind.sampler_weights))
    session = pool.sessions._open[ALICE.uid]
    assert isinstance(session, client_session.ClientSession)
    await until(lambda: session.problem is not None)
    monkeypatch.undo()
    await pool.order()
    await until(lambda: not pool.sessions.names())
    assert not session._publications
    assert pool.stores[0].is_complete(alice.layout.checkpoint(2))


async def test_programs_and_orchestrators_have_their_own_routes(pool: Pool) -> None:
    await pool.order(ONE, ALICE)
    await Program(pool, ALICE).do(forward_backward([1]))
    path = f"/sessions/{ALICE.uid}"
    for method, end in (
        ("PUT", ""),
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/steps/0"),
        ("POST", "/checkpoints/1"),
        ("POST", "/adapters/1"),
        ("GET", "/policies/a/b"),
    ):
        status, problem = await pool.call(ALICE.token, method, f"{path}{end}", {})
        assert (status, problem["reason"]) == (409, "SessionConflict"), (method, end)
    path = f"/sessions/{ONE.uid}"
    for method, end in (("POST", "/commands/1"), ("GET", "/results/1"), ("POST", "/heartbeat")):
        status, problem = await pool.call(ONE.token, method, f"{path}{end}", {})
        assert (status, problem["reason"]) == (409, "SessionConflict"), (method, end)
        assert (await pool.call(ALICE.token, method, f"{path}{end}", {}))[0] == 401
    assert (await activities(pool, ONE, ALICE)).keys() == {ALICE.uid}


async def test_a_response_proves_that_the_trainer_was_asked(pool: Pool) -> None:
    await pool.order(ALICE)
    for end, token, proven in (
        ("heartbeat", ALICE.token, True),
        ("commands/0", ALICE.token, True),
        ("steps/0", ALICE.token, True),
        ("heartbeat", ONE.token, False),
    ):
        headers = {**bearer(token), NONCE_HEADER: "n" * 32}
        async with pool.http.post(f"{pool.url}/sessions/{ALICE.uid}/{end}", headers=headers) as response:
            assert is_proven(token, "n" * 32, response.headers.get(PROOF_HEADER, "")) is proven, end


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("commands/0", {}, 422),
        ("commands/x", {}, 422),
        ("commands/1e3", {}, 422),
        ("commands/99999999999999999999", {}, 422),
        ("commands/%D9%A1", {}, 422),
        ("commands/1", {"Content-Length": str(MAX_COMMAND_BYTES + 1)}, 413),
        ("commands/1", {"Expect": ""}, 422),
    ],
)
async def test_requests_beyond_the_limits_are_refused(
    pool: Pool, path: str, headers: dict[str, str], status: int
) -> None:
    await pool.order(ALICE)
    url = f"{pool.url}/sessions/{ALICE.uid}/{path}"

    async def body() -> Any:
        yield b"begin"
        await asyncio.sleep(0.01)

    # A generator without Content-Length is sent in chunks.
    data: Any = body() if headers else b"x"
    async with asyncio.timeout(30), pool.http.post(url, data=data, headers=bearer(ALICE.token) | headers) as response:
        problem = await response.json()
    assert (response.status, problem["reason"]) == (status, "CommandInvalid")


async def test_a_compressed_command_is_refused_and_uses_no_number(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    url, headers = f"{pool.url}/sessions/{ALICE.uid}/commands/1", bearer(ALICE.token) | {"Content-Encoding": "gzip"}
    async with pool.http.post(url, data=gzip.compress(forward_backward([1])), headers=headers) as response:
        problem = await response.json()
    assert (response.status, problem["reason"]) == (422, "CommandInvalid")
    assert (await alice.do(forward_backward([1]))).error is None


async def test_waiting_for_a_result_has_limits(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    for wait in ("x", "nan", "%00"):
        assert (await alice.answer(1, wait=wait))[0] == 422  # type: ignore[arg-type]
    assert (await alice.answer(1, wait=float("inf")))[0] == 404
    pool.backend.may_compute.clear()
    await alice.send(forward_backward([1]))
    await until(lambda: pool.backend.units == 1)
    assert await alice.answer(1, wait=-5) == (202, {"state": "active"})
    waiting = asyncio.create_task(alice.answer(1))
    await asyncio.sleep(0)
    pool.backend.may_compute.set()
    assert (await waiting)[0] == 200


async def test_a_silent_program_is_noticed(pool: Pool) -> None:
    (alice,) = await joined(pool, ALICE)
    clients = pool.trainer._clients
    now = clients._clients[ALICE.uid]._clock() + 1000.0
    clients._clients[ALICE.uid]._clock = lambda: now
    assert (await activities(pool, ALICE))[ALICE.uid].silent_seconds > 900
    calls: list[Callable[[], Any]] = [
        lambda: pool.call(ALICE.token, "POST", f"/sessions/{ALICE.uid}/heartbeat"),
        lambda: alice.send(forward_backward([1])),
        lambda: alice.answer(1),
    ]
    for call in calls:
        clients._clients[ALICE.uid]._called_at -= 1000.0
        assert (await call())[0] in (200, 202, 204)
        assert (await activities(pool, ALICE))[ALICE.uid].silent_seconds == 0.0


async def test_commands_arrive_while_the_model_is_loading(pool: Pool) -> None:
    sessions = pool.sessions
    pool.trainer._sessions = None
    (alice,) = await joined(pool, ALICE)
    await alice.send(forward_backward([1]))
    status, pending = await alice.answer(1, wait=0)
    assert (status, pending["state"]) == (202, "paused_capacity")
    assert "still loading" in pending["reason"]
    state = (await activities(pool, ALICE))[ALICE.uid]
    assert state.problem is not None
    assert state.problem.reason == "TrainerLoading"
    pool.trainer.sessions = sessions
    assert (await alice.result(1))[0].error is None


@pytest.mark.parametrize("optimizer", [True, False])
async def test_a_model_starts_from_a_saved_state_with_or_without_its_optimizer(pool: Pool, optimizer: bool) -> None:
    (alice,) = await joined(pool, ALICE)
    for body in (forward_backward([3]), optim_step(1.0), save("a")):
        await alice.do(body)
    source = str(alice.layout.checkpoint(3))
    entry = BOB.entry()
    assert entry.client is not None
    entry.client = entry.client.model_copy(update={"warm_start_from": source, "warm_start_optimizer": optimizer})
    make = pool.runs._make_store

    def sharing() -> Any:
        store: Any = make()
        store.objects.update(pool.stores[0].objects)
        return store

    pool.runs._make_store = sharing
    order = TrainerOrder(runs=[ALICE.entry(), entry])
    await pool.call("p" * 64, "PUT", "/pool-order", order.to_json_dict())
    bob = Program(pool, BOB)
    await bob.do(forward_backward([4]))
    await bob.do(optim_step(1.0))
    assert slots(pool).weights[BOB.uid] == 7.0
    assert slots(pool).restored == [(False, optimizer)]
    assert (await activities(pool, ALICE, BOB))[BOB.uid].updates == 1


async def test_an_error_at_opening_that_nobody_expected_is_told_and_tried_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = True
    get = GrantedStore.get_bytes

    def get_bytes(self: GrantedStore, *arguments: Any, **options: Any) -> bytes:
        if fail:
            raise RuntimeError("broken")
        return get(self, *arguments, **options)

    monkeypatch.setattr(GrantedStore, "get_bytes", get_bytes)
    (alice,) = await joined(pool, ALICE)
    clients = pool.trainer._clients
    await until(lambda: clients._clients[ALICE.uid].opening_problem is not None)
    problem = (await activities(pool, ALICE))[ALICE.uid].problem
    assert problem is not None
    assert (problem.reason, "broken" in problem.message) == ("TrainerError", True)
    fail = False
    assert (await alice.do(forward_backward([1]))).error is None
    assert pool.backend.slots == [ALICE.uid]


VALID = [
    forward_backward([1, 2, 3], [4]),
    save("a", SaveKind.sampler_weights),
    forward_backward([1], forward_only=True),
]


@pytest.mark.parametrize("seed", range(4))
async def test_no_body_breaks_the_trainer_or_changes_another_run(pool: Pool, seed: int) -> None:
    numbers = random.Random(seed)
    alice, bob = await joined(pool, ALICE, BOB)
    await bob.do(forward_backward([5]))
    for _ in range(40):
        body = numbers.choice(VALID)
        place = numbers.randrange(len(body))
        changed = body[:place] + numbers.randbytes(numbers.randrange(4)) + body[place + numbers.randrange(4) :]
        status, answer = await alice.send(numbers.choice([changed, numbers.randbytes(numbers.randrange(200))]))
        assert status == 202, answer
        await alice.result()
    assert slots(pool).weights[ALICE.uid] == 0.0
    assert (await alice.do(optim_step(0.0))).error is None
    assert (await bob.do(optim_step(1.0))).error is None
    assert slots(pool).weights[BOB.uid] == 5.0
