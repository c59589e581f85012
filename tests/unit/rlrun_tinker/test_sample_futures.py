import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from rlrun.protocol.client_command import CommandError, CommandPending, CommandState, ErrorCategory
from rlrun_tinker import sample_futures as module
from rlrun_tinker.callers import CredentialHolder
from rlrun_tinker.errors import TinkerError
from rlrun_tinker.sample_futures import (
    ABANDONED_SECONDS,
    FOREIGN_MEMORY_SECONDS,
    FOREIGN_POLLS,
    MAX_FUTURES,
    OBJECT_BYTES,
    SampleFutures,
    SamplesFailed,
    SamplesLost,
    Tell,
)

ANN, BOB = CredentialHolder("ann", "a" * 64), CredentialHolder("bob", "b" * 64)
KIB = 1024


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def samples(clock: Clock) -> AsyncIterator[SampleFutures]:
    found = SampleFutures(clock, 0.05, (40 * KIB, 20 * KIB))
    yield found
    found.close()


def work(data: bytes = b"data", error: Exception | None = None) -> Callable[[Tell], Awaitable[bytes]]:
    async def make(_: Tell) -> bytes:
        if error is not None:
            raise error
        return data

    return make


async def forever(tell: Tell) -> bytes:
    tell(CommandPending(state=CommandState.paused_capacity, reason="no engine"))
    await asyncio.Event().wait()
    return b""


async def read(
    samples: SampleFutures, request_id: str, caller: CredentialHolder = ANN, *, is_first: bool = False
) -> tuple[int, Any]:
    """Return status and body of a poll."""
    try:
        response = await samples.retrieve(caller, request_id, allow_metadata_only=is_first)
    except TinkerError as error:
        return error.status, error.message
    is_json = response.media_type == "application/json"
    return response.status_code, json.loads(bytes(response.body)) if is_json else bytes(response.body)


async def test_samples_are_waited_for(samples: SampleFutures) -> None:
    done, waiting = samples.start(ANN, 10, 1, work()), samples.start(ANN, 10, 1, forever)
    assert await read(samples, done) == (200, b"data")
    assert await read(samples, done) == (200, b"data"), "a result can be read again"
    status, body = await read(samples, waiting)
    assert (status, body["queue_state"], body["queue_state_reason"]) == (408, "paused_capacity", "no engine")


async def test_failures_are_told(samples: SampleFutures, caplog: pytest.LogCaptureFixture) -> None:
    error = CommandError(message="too long", category=ErrorCategory.user)
    refused = samples.start(ANN, 10, 1, work(error=SamplesFailed(error)))
    lost = samples.start(ANN, 10, 1, work(error=SamplesLost()))
    broken = samples.start(ANN, 10, 1, work(error=ValueError("secret")))
    assert await read(samples, refused) == (200, {"error": "too long", "category": "user"})
    assert (await read(samples, lost))[0] == 410
    assert (await read(samples, broken))[1]["category"] == "server"
    assert "samples failed" in caplog.text


async def test_large_results_are_announced(samples: SampleFutures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INLINE_BYTES", 2)
    future = samples.start(ANN, 10, 1, work())
    announced = {"status": "complete_metadata", "response_payload_size": 4}
    assert await read(samples, future, is_first=True) == (200, announced)
    assert await read(samples, future) == (200, b"data")


async def test_as_many_samples_as_the_sdk_waits_for(samples: SampleFutures) -> None:
    futures = [samples.start(ANN, 10, 1, forever) for _ in range(MAX_FUTURES[1])]
    with pytest.raises(TinkerError) as refused:
        samples.start(ANN, 10, 1, forever)
    assert refused.value.status == 429
    other = samples.start(BOB, 10, 1, forever)
    samples.cancel(ANN, other)
    samples.cancel(ANN, futures[0])
    assert samples.in_progress == MAX_FUTURES[1]
    samples.start(ANN, 10, 1, forever)


async def test_samples_and_prompts_are_limited(samples: SampleFutures) -> None:
    for size, count in ((10, 8193), (41 * KIB**2, 1)):
        with pytest.raises(TinkerError) as refused:
            samples.start(ANN, size, count, forever)
        assert refused.value.status == 429
    for _ in range(3):
        future = samples.start(ANN, 30 * KIB**2, 8000, forever)
        samples.cancel(ANN, future)


async def test_the_oldest_results_are_dropped(samples: SampleFutures) -> None:
    size = 5 * KIB - OBJECT_BYTES
    futures = [samples.start(ANN, 10, 1, work(b"x" * size)) for _ in range(5)]
    others = [samples.start(BOB, 10, 1, work(b"x" * size)) for _ in range(4)]
    await asyncio.sleep(0)
    assert [(await read(samples, one))[0] for one in futures] == [410, 200, 200, 200, 200]
    assert [(await read(samples, one, BOB))[0] for one in others] == [200] * 4
    large = samples.start(ANN, 10, 1, work(b"x" * 40 * KIB))
    assert (await read(samples, large))[0] == 410


async def test_abandoned_futures_end(samples: SampleFutures, clock: Clock) -> None:
    done, waiting = samples.start(ANN, 10, 1, work()), samples.start(ANN, 10, 1, forever)
    polled = samples.start(ANN, 10, 1, forever)
    await read(samples, done)
    polling = asyncio.create_task(read(samples, polled))
    await asyncio.sleep(0)
    clock.now += ABANDONED_SECONDS
    samples.sweep()
    assert samples.in_progress == 1
    assert [(await read(samples, one))[0] for one in (done, waiting)] == [410, 410]
    assert (await polling)[0] == 408


async def test_another_process_lets_the_client_find_the_right_one(
    clock: Clock, samples: SampleFutures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOREIGN_SECONDS", 0.0)
    other = SampleFutures(clock, 0.05)
    future = other.start(ANN, 10, 1, forever)
    for _ in range(3):
        statuses = [(await read(samples, future))[0] for _ in range(FOREIGN_POLLS - 1)]
        assert statuses == [408] * (FOREIGN_POLLS - 1)
        # Meanwhile, the client waited at the other process.
        clock.now += FOREIGN_MEMORY_SECONDS + 1
    other.close()
    statuses = [(await read(samples, future))[0] for _ in range(FOREIGN_POLLS + 1)]
    assert statuses == [408] * FOREIGN_POLLS + [410]
    samples.cancel(ANN, future)


@pytest.mark.parametrize("text", ["", "x", "sample.0123456789ab", "sample.0123456789ab.x", "sample.0123456789AB.1"])
async def test_other_ids_are_refused(samples: SampleFutures, text: str) -> None:
    assert not module.is_sample(text)
    assert (await read(samples, text))[0] == 404


async def test_a_process_that_ends_sends_clients_to_another(samples: SampleFutures) -> None:
    done, waiting = samples.start(ANN, 10, 1, work()), samples.start(ANN, 10, 1, forever)
    await read(samples, done)
    polling = asyncio.create_task(read(samples, waiting))
    await asyncio.sleep(0)
    samples.leave()
    assert (await polling)[0] == 410
    assert await read(samples, done) == (200, b"data")
    with pytest.raises(TinkerError) as refused:
        samples.start(ANN, 10, 1, work())
    assert refused.value.status == 503
