"""Requests that rollouts of a group send together."""

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from openai import APIConnectionError
from rlrun.protocol.environment import MAX_SHARED_ROLLOUTS
from rlrun_environment.worker.shared_requests import SharedRequests

from tests.support.waiting import until


class Gateway:
    """Answers each rollout with its own name, once `gate` is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.cancelled = 0
        self.count: int | None = None
        """Number of responses. None means one for each rollout."""
        self.requests = SharedRequests(self.send)

    async def send(self, content: str, rollouts: Sequence[str]) -> list[str]:
        self.asked.append((content, list(rollouts)))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return [f"answer for {rollout}" for rollout in (*rollouts, "nobody")][: self.count or len(rollouts)]

    async def ask(self, *rollouts: str, content: str = "x") -> list[str | None]:
        return await asyncio.gather(*(self.requests.response(rollout, content) for rollout in rollouts))


async def test_equal_first_requests_are_one_request_and_each_rollout_gets_its_own_response() -> None:
    gateway = Gateway()
    assert await gateway.ask("a", "b", "c") == ["answer for a", "answer for b", "answer for c"]
    assert gateway.asked == [("x", ["a", "b", "c"])]


async def test_other_contents_are_other_requests() -> None:
    gateway = Gateway()
    answers = await asyncio.gather(gateway.ask("a", "b"), gateway.ask("c", "d", "e", content="y"))
    assert answers == [["answer for a", "answer for b"], ["answer for c", "answer for d", "answer for e"]]
    assert gateway.asked == [("x", ["a", "b"]), ("y", ["c", "d", "e"])]


async def test_a_rollout_without_company_sends_its_own_request() -> None:
    gateway = Gateway()
    assert await asyncio.gather(gateway.ask("a"), gateway.ask("b", content="y")) == [[None], [None]]
    assert gateway.asked == []


async def test_only_the_first_request_of_a_rollout_is_shared() -> None:
    gateway = Gateway()
    await gateway.ask("a", "b")
    assert await gateway.ask("a", "b", content="y") == [None, None]
    assert len(gateway.asked) == 1


async def test_after_a_failure_each_rollout_sends_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gateway = Gateway()
    gateway.error = APIConnectionError(message="one response is unusable", request=httpx.Request("POST", "http://g"))
    assert await gateway.ask("a", "b") == [None, None]
    assert "A request for 2 rollouts failed" in caplog.text
    assert "one response is unusable" in caplog.text


async def test_a_response_that_cannot_be_read_is_an_error_of_its_rollouts() -> None:
    """The gateway has recorded it: another request would be a second turn that the environment never saw."""
    gateway = Gateway()
    gateway.error = ValueError("no choices")
    answers = await asyncio.gather(
        *(gateway.requests.response(rollout, "x") for rollout in "ab"), return_exceptions=True
    )
    assert answers == [gateway.error, gateway.error]


@pytest.mark.parametrize("count", [1, 3])
async def test_only_a_rollout_without_a_response_sends_its_own_request(count: int) -> None:
    gateway = Gateway()
    gateway.count = count
    assert await gateway.ask("a", "b") == ["answer for a", "answer for b" if count == 3 else None]


async def test_a_large_group_sends_several_requests() -> None:
    gateway = Gateway()
    rollouts = [f"r{number}" for number in range(MAX_SHARED_ROLLOUTS + 2)]
    assert await gateway.ask(*rollouts) == [f"answer for {rollout}" for rollout in rollouts]
    assert [len(asked) for _, asked in gateway.asked] == [MAX_SHARED_ROLLOUTS, 2]


async def test_a_cancelled_rollout_leaves_the_request_to_the_others() -> None:
    gateway = Gateway()
    gateway.gate.clear()
    first, *others = [asyncio.create_task(gateway.requests.response(rollout, "x")) for rollout in "abc"]
    await until(lambda: bool(gateway.asked))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gateway.gate.set()
    assert await asyncio.gather(*others) == ["answer for b", "answer for c"]
    assert gateway.cancelled == 0


async def test_the_request_is_cancelled_with_its_last_rollout() -> None:
    gateway = Gateway()
    gateway.gate.clear()
    rollouts = [asyncio.create_task(gateway.requests.response(rollout, "x")) for rollout in "ab"]
    await until(lambda: bool(gateway.asked))
    for rollout in rollouts:
        rollout.cancel()
    await until(lambda: gateway.cancelled == 1)


async def test_rollouts_cancelled_before_the_request_are_no_part_of_it() -> None:
    gateway = Gateway()
    rollouts = [asyncio.create_task(gateway.requests.response(rollout, "x")) for rollout in "abc"]

    def cancel() -> None:
        rollouts[0].cancel()

    asyncio.get_running_loop().call_soon(cancel)
    answers = await asyncio.gather(*rollouts, return_exceptions=True)
    assert [isinstance(answers[0], asyncio.CancelledError), *answers[1:]] == [True, "answer for b", "answer for c"]
    assert gateway.asked == [("x", ["b", "c"])]
