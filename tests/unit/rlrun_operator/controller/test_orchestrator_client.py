"""The operator's watch of orchestrators, against their real server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry
from rlrun.protocol.orchestrator import GroupCounts, RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.service.errors import RequestError, ServiceUnavailable
from rlrun_operator.controller import orchestrator_client
from rlrun_operator.controller.orchestrator_client import OrchestratorClient, has_only_numbers, pause_after
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.runtime.metrics import POLL_ERRORS
from rlrun_operator.runtime.rate_limit import RateLimit
from rlrun_operator.runtime.work_queue import Priority
from rlrun_orchestrator.status.status_server import status_application

from tests.support.expectations import present
from tests.support.waiting import until

KEY = RunKey("team", "reverse")
TOKEN = "secret"

Changes = asyncio.Queue[tuple[RunKey, Priority]]


def told(changes: Changes) -> Callable[[RunKey, Priority], None]:
    """Return what a client calls with its changes."""
    return lambda key, priority: changes.put_nowait((key, priority))


@dataclass
class Orchestrator:
    """A run's orchestrator, and the operator that watches it."""

    server: TestServer
    client: OrchestratorClient
    changes: Changes = field(default_factory=asyncio.Queue)
    status: RunStatus = field(default_factory=lambda: RunStatus(phase=RunPhase.running, step=3, max_steps=10))
    requests: int = 0
    is_broken: bool = False
    now: float = 0.0

    def build_status(self) -> RunStatus:
        self.requests += 1
        if self.is_broken:
            raise ZeroDivisionError
        return self.status

    def change(self, **fields: object) -> None:
        self.status = self.status.model_copy(update=fields)

    async def asked(self, times: int) -> None:
        """Wait for this number of further requests."""
        wanted = self.requests + times
        async with asyncio.timeout(20):
            while self.requests < wanted:  # noqa: ASYNC110  # the server has no event for it
                await asyncio.sleep(0.01)

    async def changed(self) -> tuple[RunKey, Priority]:
        """The next change that is told."""
        return await asyncio.wait_for(self.changes.get(), 20)

    async def look(self) -> int:
        """The step that a look sees."""
        return (await self.client.status(KEY, TOKEN)).step


@pytest.fixture
async def run(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Orchestrator]:
    async for found in started(monkeypatch):
        yield found


async def started(monkeypatch: pytest.MonkeyPatch, wait: float = 20.0) -> AsyncIterator[Orchestrator]:
    monkeypatch.setattr(orchestrator_client, "WAIT_SECONDS", wait)
    found: Orchestrator
    app = status_application(lambda: found.build_status(), CollectorRegistry(), TOKEN)
    async with TestServer(app) as server:
        changes: Changes = asyncio.Queue()
        client = OrchestratorClient(f"http://127.0.0.1:{server.port}/status", told(changes), 0.01)
        found = Orchestrator(server, client, changes)
        yield found
        await client.close()


async def test_a_change_is_noticed_and_read_without_another_request(run: Orchestrator) -> None:
    assert await run.look() == 3
    assert run.client.is_watched(KEY)
    run.change(step=4)
    assert (await run.changed())[0] == KEY
    before = run.requests
    assert await run.look() == 4
    assert run.requests == before


async def test_changes_beyond_the_limit_wait_and_show_what_the_run_has_done_meanwhile() -> None:
    """At most one change at once and one more every 0.5 s. Both runs have the same orchestrator."""
    status = RunStatus(phase=RunPhase.running, step=3, max_steps=10)
    app = status_application(lambda: status, CollectorRegistry(), TOKEN)
    async with TestServer(app) as server:
        changes: Changes = asyncio.Queue()
        limit = RateLimit(2, 1, asyncio.get_running_loop().time)
        url = f"http://127.0.0.1:{server.port}/status"
        client = OrchestratorClient(url, told(changes), 0.01, limit)
        keys = {RunKey("team", "first"), RunKey("team", "second")}
        for key in keys:
            await client.status(key, TOKEN)
        status = status.model_copy(update={"step": 4})
        async with asyncio.timeout(20):
            first, _ = await changes.get()
            assert (await client.status(first, TOKEN)).step == 4
            status = status.model_copy(update={"step": 5})
            (second,) = keys - {first}
            while (await changes.get())[0] != second:
                pass
        assert (await client.status(second, TOKEN)).step == 5
        await client.close()


PROBLEM = Problem(reason="TrainerOutOfMemory", message="m")


@pytest.mark.parametrize(
    ("change", "waits"),
    [
        ({"step": 4, "policy_version": 4, "reward": 0.5, "reward_errors": 1}, True),
        ({"phase": RunPhase.failed, "problem": PROBLEM}, False),
        ({"waiting_for": PROBLEM}, False),
        ({"warnings": [PROBLEM]}, False),
    ],
    ids=["progress", "failure", "wait", "warning"],
)
def test_only_progress_waits_for_the_limit(change: dict[str, object], waits: bool) -> None:
    before = RunStatus(phase=RunPhase.running, step=3, max_steps=10)
    assert has_only_numbers(before, before.model_copy(update=change)) is waits


async def test_progress_of_a_run_has_less_priority_than_its_failure_and_the_end_of_its_answers(
    run: Orchestrator,
) -> None:
    await run.look()
    for change, priority in (
        ({"step": 4}, Priority.PROGRESS),
        ({"step": 5, "reward_errors": 1}, Priority.ROUTINE),
        ({"step": 4}, Priority.ROUTINE),  # It repeats steps.
        ({"step": 5, "phase": RunPhase.failed, "problem": PROBLEM}, Priority.EVENT),
    ):
        run.change(**change)
        assert await run.changed() == (KEY, priority)


async def test_the_last_report_is_known_while_the_orchestrator_answers(silent: Orchestrator) -> None:
    assert silent.client.known_report(KEY) is None
    silent.is_broken = False
    await silent.changed()
    assert present(silent.client.known_report(KEY)).step == 4
    silent.client.forget(KEY)
    assert silent.client.known_report(KEY) is None


@pytest.fixture
async def silent(run: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> Orchestrator:
    """A run whose orchestrator has answered once and then does not for 29 s, by the client's clock."""
    monkeypatch.setattr(orchestrator_client, "LONGEST_PAUSE", 0.01)
    run.client._clock = lambda: run.now
    await run.look()
    run.is_broken = True
    run.change(step=4)
    await run.asked(2)
    run.now = 29.0
    await run.asked(2)
    return run


async def test_a_request_that_fails_is_not_shown(silent: Orchestrator) -> None:
    for _ in range(3):
        assert await silent.look() == 3
    assert silent.changes.empty()
    silent.is_broken = False
    assert (await silent.changed())[0] == KEY
    assert await silent.look() == 4


@pytest.mark.parametrize(
    ("meanwhile", "priority"),
    [({"step": 3}, Priority.ROUTINE), ({}, Priority.ROUTINE), ({"phase": RunPhase.failed}, Priority.EVENT)],
    ids=["nothing", "progress", "failure"],
)
async def test_a_silence_is_told_and_its_end_and_no_look_asks_meanwhile(
    silent: Orchestrator, meanwhile: dict[str, object], priority: Priority
) -> None:
    silent.now = 30.0
    assert await silent.changed() == (KEY, Priority.EVENT)
    for silent.now in (30.0, 60.0):
        await silent.asked(2)
        assert silent.client.silent_seconds(KEY) == silent.now
        with pytest.raises(RequestError):
            await silent.look()
    assert silent.changes.empty()
    assert silent.client.is_watched(KEY)
    silent.change(**meanwhile)
    silent.is_broken = False
    assert await silent.changed() == (KEY, priority)
    assert await silent.look() == meanwhile.get("step", 4)
    assert silent.client.silent_seconds(KEY) == 0


async def test_the_wait_for_a_change_is_no_silence(run: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that hangs for 20 s and fails after 28 s was due for 8 s."""
    run.client._clock = lambda: run.now
    await run.look()

    async def call(*_: object, **__: object) -> None:
        run.now += 28.0
        run.client._asking_again.fetch = never  # type: ignore[method-assign]
        raise ServiceUnavailable(PROBLEM)

    async def never(*_: object, **__: object) -> bytes:
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(run.client._hanging, "fetch", call)
    async with asyncio.timeout(20):
        while not run.now:  # noqa: ASYNC110  # nothing tells it
            await asyncio.sleep(0.01)
    assert run.client.silent_seconds(KEY) == 8.0


async def test_an_orchestrator_that_is_silent_is_asked_less_often_and_by_no_look(
    silent: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orchestrator_client, "LONGEST_PAUSE", 1000.0)
    silent.now = 100_000.0
    await silent.changed()
    before = silent.requests
    for _ in range(5):
        await asyncio.sleep(0.05)
        with pytest.raises(RequestError):
            await silent.look()
    assert silent.requests <= before + 1


async def test_an_orchestrator_that_has_never_answered_is_watched_too(run: Orchestrator) -> None:
    run.is_broken = True
    for _ in range(2):
        with pytest.raises(RequestError):
            await run.look()
    assert run.client.is_watched(KEY)
    run.is_broken = False
    assert await run.changed() == (KEY, Priority.EVENT)
    assert await run.look() == 3


@dataclass
class Hanging:
    """Orchestrators that answer no request before `released` is set."""

    client: OrchestratorClient
    changes: Changes
    released: asyncio.Event = field(default_factory=asyncio.Event)
    version: str = "1"
    requests: int = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.requests += 1
        await self.released.wait()
        status = RunStatus(phase=RunPhase.running, step=3, max_steps=10, version=self.version)
        return web.json_response(status.to_json_dict())

    async def changed(self) -> tuple[RunKey, Priority]:
        return await asyncio.wait_for(self.changes.get(), 20)

    async def look(self, key: RunKey = KEY) -> int | None:
        """Return the step that a look sees; None: no answer."""
        try:
            return (await self.client.status(key, TOKEN)).step
        except RequestError:
            return None

    async def unwatched(self) -> None:
        """Wait for the end of the watch, which causes a look."""
        async with asyncio.timeout(20):
            while self.client.is_watched(KEY):
                assert (await self.changes.get())[0] == KEY
                await asyncio.sleep(0)
        while not self.changes.empty():
            self.changes.get_nowait()


@pytest.fixture
async def hanging(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hanging]:
    monkeypatch.setattr(orchestrator_client, "FIRST_SECONDS", 0.05)
    changes: Changes = asyncio.Queue()
    found: Hanging

    async def answer(request: web.Request) -> web.Response:
        return await found.answer(request)

    app = web.Application()
    app.router.add_get("/{name}", answer)
    async with TestServer(app) as server:
        client = OrchestratorClient(f"http://127.0.0.1:{server.port}/{{name}}", told(changes), 0.01)
        found = Hanging(client, changes)
        yield found
        found.released.set()
        await client.close()


async def test_a_look_does_not_wait_for_a_late_first_answer_which_causes_another(hanging: Hanging) -> None:
    assert await hanging.look() is None
    await until(lambda: hanging.requests == 1)
    assert await hanging.look() is None
    assert hanging.client.is_watched(KEY)
    assert hanging.client.silent_seconds(KEY) == 0
    assert (hanging.requests, hanging.changes.empty()) == (1, True)
    hanging.released.set()
    assert await hanging.changed() == (KEY, Priority.EVENT)
    assert await hanging.look() == 3


async def test_a_first_answer_that_comes_in_time_causes_no_other_look(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orchestrator_client, "FIRST_SECONDS", 20.0)
    look = asyncio.create_task(hanging.look())
    await asyncio.sleep(0.1)
    hanging.released.set()
    assert await look == 3
    assert hanging.changes.empty()


async def test_many_first_requests_without_an_answer_do_not_delay_that_of_another_run(
    hanging: Hanging,
) -> None:
    hanging.client._http._timeout = 60.0
    silent = [RunKey("team", f"silent-{i}") for i in range(100)]
    assert await asyncio.gather(*map(hanging.look, silent)) == [None] * 100
    async with asyncio.timeout(20):
        while hanging.requests < 100:  # noqa: ASYNC110  # nothing tells it
            await asyncio.sleep(0.01)


async def test_a_deciding_look_without_an_answer_of_its_own_takes_one_that_came_meanwhile(hanging: Hanging) -> None:
    assert await hanging.look() is None
    watch = hanging.client._watches[KEY]

    async def call(*_: object, **__: object) -> None:
        watch.on_answer(RunStatus(phase=RunPhase.running, step=3, max_steps=10, version="1"))
        raise ServiceUnavailable(PROBLEM)

    hanging.client._http.fetch = call  # type: ignore[method-assign,assignment]
    assert (await hanging.client.status(KEY, TOKEN, is_fresh=True)).step == 3


async def test_a_deciding_look_waits_for_the_first_answer(hanging: Hanging) -> None:
    look = asyncio.create_task(hanging.client.status(KEY, TOKEN, is_fresh=True))
    await asyncio.sleep(0.2)
    hanging.released.set()
    assert (await look).step == 3
    assert hanging.changes.empty()


async def test_a_run_that_is_forgotten_before_its_first_answer_causes_no_look(hanging: Hanging) -> None:
    assert await hanging.look() is None
    hanging.client.forget(KEY)
    hanging.released.set()
    await asyncio.sleep(0.3)
    assert hanging.changes.empty()
    assert not hanging.client.is_watched(KEY)


async def test_a_run_that_is_forgotten_at_once_is_not_asked(hanging: Hanging) -> None:
    look = asyncio.create_task(hanging.look())
    await asyncio.sleep(0)
    hanging.client.forget(KEY)
    assert await look is None
    await asyncio.sleep(0.2)
    assert hanging.requests == 0


@pytest.mark.parametrize(("seconds", "is_told"), [(0.0, False), (0.2, True)], ids=["while a look waits", "later"])
async def test_an_error_of_the_operator_in_the_first_request_is_that_of_a_look(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch, seconds: float, is_told: bool
) -> None:
    """Looks that fail are repeated less and less often."""

    async def call(*_: object, **__: object) -> None:
        await asyncio.sleep(seconds)
        raise ZeroDivisionError

    monkeypatch.setattr(hanging.client._http, "fetch", call)
    if is_told:
        assert await hanging.look() is None
        await hanging.unwatched()
    else:
        with pytest.raises(ZeroDivisionError):
            await hanging.look()
    assert not hanging.client.is_watched(KEY)
    assert hanging.changes.empty()


async def test_a_look_that_decides_asks_and_its_error_is_its_own(run: Orchestrator) -> None:
    await run.look()
    await run.asked(1)
    run.is_broken = True
    before = run.requests
    with pytest.raises(RequestError):
        await run.client.status(KEY, TOKEN, is_fresh=True)
    assert run.requests > before
    run.is_broken = False
    assert run.client.silent_seconds(KEY) == 0
    assert await run.look() == 3


@pytest.mark.parametrize(
    ("meanwhile", "priority"),
    [
        ({}, Priority.PROGRESS),
        ({"step": 5}, Priority.PROGRESS),
        ({"step": 5, "reward_errors": 1}, Priority.ROUTINE),
        ({"phase": RunPhase.failed}, Priority.EVENT),
    ],
)
async def test_a_change_that_waited_for_the_limit_is_told(
    run: Orchestrator, meanwhile: dict[str, object], priority: Priority
) -> None:
    async def wait(_: str) -> bool:
        run.change(**meanwhile)
        return True

    run.client._changes.wait = wait  # type: ignore[method-assign]
    await run.look()
    run.change(step=4)
    assert await run.changed() == (KEY, priority)


async def test_failures_are_counted(run: Orchestrator) -> None:
    before = POLL_ERRORS._value.get()
    run.is_broken = True
    with pytest.raises(RequestError):
        await run.look()
    assert POLL_ERRORS._value.get() > before


@pytest.mark.parametrize(("silent", "expected"), [(0, 2), (15, 2), (60, 6), (150, 15), (1000, 20)], ids="{} s".format)
def test_an_orchestrator_is_asked_less_often_the_longer_it_is_silent(silent: float, expected: float) -> None:
    assert pause_after(silent, 2.0) == expected


@pytest.mark.parametrize(
    ("parse_seconds", "watches", "expected"),
    [(0.0001, 1000, 2), (0.005, 1, 2), (0.005, 100, 5), (0.005, 1000, 50), (1.0, 1000, 60)],
)
def test_the_runs_of_a_namespace_share_a_part_of_the_loop(parse_seconds: float, watches: int, expected: float) -> None:
    assert pause_after(0, 2.0, parse_seconds, watches) == pytest.approx(expected)


async def test_a_fresh_status_is_that_of_this_moment(run: Orchestrator) -> None:
    await run.look()
    run.change(eta_seconds=5.0)
    assert (await run.client.status(KEY, TOKEN)).eta_seconds is None
    assert (await run.client.status(KEY, TOKEN, is_fresh=True)).eta_seconds == 5.0
    assert run.client.is_watched(KEY)


async def test_nothing_is_told_while_only_estimates_change(run: Orchestrator) -> None:
    await run.look()
    run.change(eta_seconds=5.0, groups=GroupCounts(in_flight=7))
    await asyncio.sleep(0.3)
    assert run.changes.empty()
    assert run.client.is_watched(KEY)


async def test_a_wait_that_ends_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async for run in started(monkeypatch, wait=0.1):
        await run.look()
        async with asyncio.timeout(10):
            while run.requests <= 6:  # noqa: ASYNC110  # the fake server has no event for it
                await asyncio.sleep(0.01)
        assert run.changes.empty()
        assert run.client.is_watched(KEY)


async def test_requests_that_wait_do_not_keep_an_orchestrator_from_its_end(run: Orchestrator) -> None:
    await run.look()
    began = asyncio.get_running_loop().time()
    await run.server.close()
    assert asyncio.get_running_loop().time() - began < 10
    with pytest.raises(RequestError):
        await run.client.status(KEY, TOKEN, is_fresh=True)


async def test_the_status_of_another_run_is_not_shown(run: Orchestrator) -> None:
    await run.look()
    with pytest.raises(RequestError):
        await run.client.status(KEY, "of another run")
    assert await run.look() == 3
    await asyncio.sleep(0)
    assert len([task for task in asyncio.all_tasks() if task.get_name() == f"status of {KEY}"]) == 1


async def test_a_watch_that_ends_by_an_error_of_its_own_does_not_keep_an_old_status(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def call(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(run.client._hanging, "fetch", call)
    await run.look()
    assert (await run.changed())[0] == KEY
    assert ZeroDivisionError in {record.exc_info[0] for record in caplog.records if record.exc_info}
    run.change(step=4)
    assert await run.look() == 4


async def test_a_run_without_orchestrator_is_forgotten(run: Orchestrator) -> None:
    await run.look()
    run.client.forget(KEY)
    run.change(step=4)
    await asyncio.sleep(0.3)
    assert not run.client.is_watched(KEY)
    assert run.changes.empty()
    assert await run.look() == 4
    assert run.client.is_watched(KEY)


async def test_orchestrators_beyond_the_limit_are_asked_each_time(
    run: Orchestrator,
) -> None:
    client = OrchestratorClient(f"http://127.0.0.1:{run.server.port}/status", told(run.changes), 0.01, watches=0)
    run.is_broken = True
    with pytest.raises(RequestError):
        await client.status(KEY, TOKEN)
    assert not client.is_watched(KEY)
    run.is_broken = False
    for step in (3, 4):
        run.change(step=step)
        assert (await client.status(KEY, TOKEN)).step == step
        assert not client.is_watched(KEY)
    await client.close()


async def test_one_namespace_cannot_take_all_watches(run: Orchestrator) -> None:
    url, changes = f"http://127.0.0.1:{run.server.port}/status", asyncio.Queue[tuple[RunKey, Priority]]()
    client = OrchestratorClient(url, told(changes), 0.01, watches=4)
    try:
        for number in range(5):
            await client.status(RunKey("greedy", f"run-{number}"), TOKEN)
        assert [client.is_watched(RunKey("greedy", f"run-{number}")) for number in range(5)] == [True] * 2 + [False] * 3
        await client.status(KEY, TOKEN)
        assert client.is_watched(KEY)
        client.forget(RunKey("greedy", "run-0"))
        client.forget(RunKey("greedy", "run-4"))
        await client.status(RunKey("greedy", "run-4"), TOKEN)
        assert client.is_watched(RunKey("greedy", "run-4")), "a watch that has ended makes room"
    finally:
        await client.close()
