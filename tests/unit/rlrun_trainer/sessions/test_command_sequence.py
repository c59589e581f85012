"""Commands are executed once and in the order of their numbers, whatever the order in which they arrive."""

import asyncio
from typing import cast

import pytest
from rlrun.constants import LATER, Reason
from rlrun.protocol.client_command import CommandState, ErrorCategory
from rlrun.service.errors import ProblemError
from rlrun_trainer.sessions import command_sequence
from rlrun_trainer.sessions.client_session import ClientSession, Outcome
from rlrun_trainer.sessions.command_sequence import CommandSequence
from rlrun_trainer.sessions.received_command import ReceivedCommand

from tests.support.client_commands import read_result, save


class Session:
    """A session that notes what it executes. The result of a command is its name."""

    name = "run"
    newest_saved = "The newest saved state is 'a' from call 4: create a new model from a saved state"

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.held_seconds = 0.0
        self.is_leaving = False
        self.executed: list[int] = []
        self.may_execute = asyncio.Event()
        self.may_execute.set()
        self.uploads: dict[int, asyncio.Task[bytes]] = {}
        self.result = b"done"

    def require_staying(self) -> None:
        if self.is_leaving:
            raise ProblemError.of(LATER, Reason.TRAINER_STOPPING, "it ends")

    async def execute(self, number: int, _: ReceivedCommand) -> Outcome:
        await self.may_execute.wait()
        self.require_staying()
        self.executed.append(number)
        self.step = number
        return self.uploads.get(number, self.result)

    async def save_due_copy(self) -> None:
        pass


def command(name: str) -> ReceivedCommand:
    return ReceivedCommand.read(save(name))


def started(session: Session, gap_seconds: float = 3600.0) -> CommandSequence:
    sequence = CommandSequence(gap_seconds)
    sequence.start(cast(ClientSession, session))
    return sequence


def send(sequence: CommandSequence, *numbers: int) -> None:
    for number in numbers:
        with sequence.reading(number, 100):
            sequence.receive(number, command(f"c{number}"))


async def results(sequence: CommandSequence, *numbers: int) -> list[bytes | None]:
    return list(await asyncio.gather(*(sequence.result(number, 30.0) for number in numbers)))


async def refused(sequence: CommandSequence, number: int) -> tuple[int, str]:
    with pytest.raises(ProblemError) as raised:
        await sequence.result(number, 0.0)
    return raised.value.status, raised.value.problem.reason


async def test_later_numbers_may_arrive_first() -> None:
    session = Session()
    sequence = started(session)
    send(sequence, 3, 2)
    assert await sequence.result(2, 0.01) is None
    send(sequence, 1)
    assert await results(sequence, 1, 2, 3) == [b"done"] * 3
    assert session.executed == [1, 2, 3]
    sequence.close()


async def test_commands_wait_for_the_session_and_continue_after_its_state() -> None:
    sequence, session = CommandSequence(), Session(step=5)
    send(sequence, 7, 6, 5)
    assert sequence.pending("2 runs ahead").model_dump() == {
        "state": CommandState.paused_capacity,
        "reason": "2 runs ahead",
    }
    assert len(sequence.pending("x" * 20_000).reason or "") == 1024
    sequence.start(cast(ClientSession, session))
    lost, *others = await results(sequence, 5, 6, 7)
    assert (others, session.executed) == ([b"done"] * 2, [6, 7])
    assert lost is not None
    error = read_result(lost)[0].error
    assert error is not None
    assert error.category is ErrorCategory.server
    assert "was lost, because the trainer was replaced" in error.message
    sequence.close()


async def test_a_repeated_command_changes_nothing_and_another_one_is_refused() -> None:
    session = Session()
    sequence = started(session)
    send(sequence, 1, 1, 2)
    await results(sequence, 1, 2)
    send(sequence, 1)
    assert session.executed == [1, 2]
    for number in (1, 2):
        with pytest.raises(ProblemError) as raised:
            sequence.receive(number, command("other"))
        assert (raised.value.status, raised.value.problem.reason) == (409, "CommandConflict")
    assert await results(sequence, 1, 2) == [b"done"] * 2, "also after the result was read"
    sequence.close()


async def test_an_upload_delays_no_later_command() -> None:
    session, ended = Session(), asyncio.Event()

    async def upload() -> bytes:
        await ended.wait()
        return b"saved"

    session.uploads[1] = asyncio.create_task(upload())
    sequence = started(session)
    send(sequence, 1, 2)
    assert await results(sequence, 2) == [b"done"]
    assert await sequence.result(1, 0.01) is None
    ended.set()
    assert await results(sequence, 1) == [b"saved"]
    sequence.close()


async def test_a_fault_that_nobody_expected_fails_one_command() -> None:
    session = Session()
    execute = session.execute

    async def fail_first(number: int, received: ReceivedCommand) -> Outcome:
        if number == 1:
            raise RuntimeError("broken")
        return await execute(number, received)

    session.execute = fail_first  # type: ignore[assignment, method-assign]
    sequence = started(session)
    send(sequence, 1, 2)
    failure, other = await results(sequence, 1, 2)
    assert failure is not None
    error = read_result(failure)[0].error
    assert error is not None
    assert (error.category, "RuntimeError" in error.message) == (ErrorCategory.server, True)
    assert other == b"done"
    sequence.close()


async def test_a_gap_fails_what_waits_and_what_comes_later() -> None:
    session = Session()
    sequence = started(session, gap_seconds=0.05)
    send(sequence, 1, 3, 4)
    for result in (await results(sequence, 1, 3, 4))[1:]:
        assert result is not None
        error = read_result(result)[0].error
        assert error is not None
        assert error.category is ErrorCategory.server
        for part in ("Call 2 of this model did not arrive", "state after call 1", "'a' from call 4: create a new"):
            assert part in error.message
    send(sequence, 2, 5)
    assert all(b"did not arrive" in (result or b"") for result in await results(sequence, 2, 5))
    assert session.executed == [1]


async def test_the_first_call_after_a_restart_waits_for_lost_calls_only_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_sequence, "RESUMED_GAP_SECONDS", 0.05)
    sequence = started(Session(step=10))
    send(sequence, 42)
    async with asyncio.timeout(30):
        (result,) = await results(sequence, 42)
    assert b"Call 11 of this model did not arrive within 0 s" in (result or b"")
    continued, new = started(Session(step=10)), started(Session())
    send(continued, 11, 13)
    send(new, 2)
    assert await results(continued, 11) == [b"done"]
    await asyncio.sleep(0.2)
    assert await continued.result(13, 0.0) is await new.result(2, 0.0) is None, "calls of this process may come late"
    for each in (continued, new):
        each.close()


async def test_commands_beyond_the_limits_are_refused_except_the_one_that_others_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_sequence, "MAX_WAITING_COMMANDS", 3)
    session = Session()
    session.may_execute.clear()
    sequence = started(session)
    send(sequence, 2, 3, 4)
    for number in (5, 2):
        with pytest.raises(ProblemError) as raised, sequence.reading(number, 1):
            pass
        assert (raised.value.status, raised.value.problem.reason) == (429, "TooManyCommands")
    with sequence.reading(1, 100), pytest.raises(ProblemError, match="TooManyCommands"), sequence.reading(1, 100):
        pass
    send(sequence, 1)
    session.may_execute.set()
    await results(sequence, 1, 2, 3, 4)
    send(sequence, 5)
    sequence.close()


async def test_bodies_count_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_sequence, "MAX_WAITING_BYTES", 1000)
    sequence = CommandSequence()
    with sequence.reading(5, 600), pytest.raises(ProblemError, match="TooManyCommands"), sequence.reading(6, 600):
        pass
    with sequence.reading(6, 600):
        pass


async def test_the_calls_of_all_runs_have_a_limit_but_each_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_sequence, "MAX_POOL_BYTES", 1000)
    session, of_others = Session(), 950
    sequence = CommandSequence(pool_bytes=lambda: of_others + sequence.waiting_bytes)
    sequence.start(cast(ClientSession, session))
    with pytest.raises(ProblemError, match="and many calls of other models"):
        send(sequence, 2)
    send(sequence, 1)
    assert await results(sequence, 1) == [b"done"]
    of_others = 0
    send(sequence, 3)
    assert sequence.waiting_bytes > 0
    send(sequence, 2)
    assert await results(sequence, 2, 3) == [b"done"] * 2
    assert sequence.waiting_bytes == 0
    sequence.close()


async def test_unknown_and_dropped_results_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_sequence, "KEPT_RESULTS", 2)
    sequence = started(Session(step=10))
    assert await refused(sequence, 11) == (404, "CommandUnknown")
    send(sequence, 11, 12)
    await results(sequence, 12)
    send(sequence, 13)
    await results(sequence, 13)
    assert await refused(sequence, 12) == (410, "ResultGone"), "it was read, the older one was not"
    assert await results(sequence, 11, 13) == [b"done"] * 2
    assert await refused(sequence, 9) == (404, "CommandUnknown"), "of a former process"
    assert await refused(sequence, 14) == (404, "CommandUnknown")
    send(sequence, 12)
    assert await refused(sequence, 12) == (410, "ResultGone"), "it is not executed again"
    sequence.close()


async def test_results_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_sequence, "KEPT_BYTES", 1000)
    session = Session()
    session.result = bytes(600)
    sequence = started(session)
    send(sequence, 1, 2)
    await results(sequence, 2)
    assert await refused(sequence, 1) == (410, "ResultGone")
    session.result = bytes(2000)
    send(sequence, 3)
    assert await results(sequence, 3) == [bytes(2000)]
    sequence.close()


async def test_polls_beyond_the_limit_get_a_response_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_sequence, "MAX_POLLS", 1)
    sequence = CommandSequence()
    send(sequence, 1)
    first = asyncio.create_task(sequence.result(1, 3600.0))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(sequence.result(1, 3600.0), 30) is None
    first.cancel()


async def test_users_learn_what_a_command_waits_for() -> None:
    session = Session()
    sequence = started(session)
    assert sequence.pending("").state is CommandState.active
    session.held_seconds = 10.0
    assert sequence.pending("").state is CommandState.paused_rate_limit
    session.is_leaving = True
    assert sequence.pending("").state is CommandState.paused_capacity
    assert sequence.is_over
    sequence.close()


async def test_after_the_session_nothing_is_executed_and_nothing_received() -> None:
    session = Session()
    sequence = started(session)
    send(sequence, 1)
    assert await results(sequence, 1) == [b"done"]
    send(sequence, 2)
    session.is_leaving = True
    with pytest.raises(ProblemError, match="TrainerStopping"):
        send(sequence, 3)
    assert await refused(sequence, 3) == (404, "CommandUnknown")
    send(sequence, 1, 2)
    assert await sequence.result(2, 0.05) is None
    assert session.executed == [1]
    sequence.close()
    with pytest.raises(ProblemError, match="TokenInvalid"):
        sequence.receive(2, command("c2"))
