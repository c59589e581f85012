"""Division of an engine's time among runs."""

import asyncio
import random
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from rlrun.protocol.pool_usage import PoolUsage
from rlrun_engine_access.engine_usage import KEPT_SECONDS, MAX_LISTED_RUNS, EngineUsage

ONE, TWO, THREE = "uid-1", "uid-2", "uid-3"


class Engine:
    """Usage with a clock that tests move, and the requests in vLLM."""

    def __init__(self) -> None:
        self.age = 0.0
        self.usage = EngineUsage(lambda: self.age)
        self.requests: list[tuple[str, ExitStack]] = []

    def start(self, uid: str, sequences: int = 1) -> None:
        stack = ExitStack()
        stack.enter_context(self.usage.request(uid, sequences))
        self.requests.append((uid, stack))

    def end(self, uid: str) -> None:
        place = next(place for place, (started, _) in enumerate(self.requests) if started == uid)
        self.requests.pop(place)[1].close()

    @property
    def exported(self) -> PoolUsage:
        return PoolUsage.model_validate(self.usage.export(waiting=0))

    @property
    def seconds(self) -> dict[str, float]:
        return {uid: run.device_seconds for uid, run in self.exported.runs.items()}

    @property
    def is_complete(self) -> bool:
        """True if runs and idle time sum to the age of the process."""
        return sum(self.seconds.values()) + self.exported.idle_seconds == pytest.approx(self.age, rel=1e-9)


def test_a_request_of_several_sequences_has_as_many_shares() -> None:
    engine = Engine()
    engine.start(ONE, sequences=3)
    engine.start(TWO)
    engine.age += 8
    assert engine.seconds == {ONE: 6, TWO: 2}
    engine.end(ONE)
    engine.age += 8
    assert engine.seconds == {ONE: 6, TWO: 10}
    assert engine.is_complete


def test_time_is_divided_among_the_requests_in_vllm() -> None:
    engine = Engine()
    engine.age = 100.0  # the start of the engine
    engine.start(ONE)
    engine.age += 10
    engine.start(TWO)
    engine.age += 8
    assert engine.seconds == {ONE: 14, TWO: 4}, "of requests that have not ended"
    engine.start(TWO)
    engine.age += 6
    assert engine.seconds == {ONE: 16, TWO: 8}
    engine.end(TWO)
    engine.end(ONE)
    engine.age += 5
    engine.end(TWO)
    engine.age += 50
    assert engine.seconds == {ONE: 16, TWO: 13}
    assert engine.exported.idle_seconds == 150
    assert engine.is_complete


def test_a_request_that_is_cancelled_counts_its_time_and_no_tokens() -> None:
    engine = Engine()
    engine.start(ONE)
    engine.age += 3
    [(_, request)] = engine.requests
    assert not request.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None), "it is not suppressed"
    engine.age += 4
    assert engine.exported.runs[ONE].tokens == {"prompt": 0, "cached": 0, "sampled": 0}
    assert engine.seconds == {ONE: 3}
    assert engine.exported.idle_seconds == 4


def test_runs_and_idle_time_sum_to_the_age_of_the_process() -> None:
    engine, chance = Engine(), random.Random(0)
    engine.age = 1e6
    before = dict[str, float]()
    for _ in range(20_000):
        engine.age += chance.expovariate(10)
        if chance.random() < 0.5:
            engine.start(chance.choice([ONE, TWO, THREE]))
        elif engine.requests:
            engine.end(chance.choice(engine.requests)[0])
        if chance.random() < 0.1:
            assert all(engine.seconds[uid] >= seconds for uid, seconds in before.items()), "a counter never falls"
            before = engine.seconds
    assert engine.is_complete
    assert len(before) == 3


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    engine = Engine()
    engine.start(ONE)
    engine.age = 10
    assert engine.seconds == {ONE: 10}
    engine.age = 9
    assert engine.seconds == {ONE: 10}
    engine.age = 11
    assert engine.seconds == {ONE: 11}


def test_tokens_of_a_run_are_summed() -> None:
    engine = Engine()
    for count in (2, 3):
        with engine.usage.request(ONE) as response:
            details = f'{{"cached_tokens":{count - 1}}}'
            text = f'{{"usage":{{"prompt_tokens":{count},"completion_tokens":7,"prompt_tokens_details":{details}}}}}'
            response.feed(text.encode())
    assert engine.exported.runs[ONE].tokens == {"prompt": 5, "cached": 3, "sampled": 14}


def test_runs_of_the_order_are_exported_from_zero_on_and_a_while_after_they_left() -> None:
    engine = Engine()
    engine.usage.set_runs([ONE, TWO])
    engine.usage.count_refusal(TWO)
    engine.usage.count_refusal(THREE)
    assert engine.seconds == {ONE: 0, TWO: 0}
    assert [run.refused for run in engine.exported.runs.values()] == [0, 1]
    engine.usage.set_runs([TWO])
    engine.age += KEPT_SECONDS
    assert engine.seconds == {ONE: 0, TWO: 0}
    engine.usage.set_runs([TWO])
    engine.age += 1
    assert engine.seconds == {TWO: 0}
    engine.usage.set_runs([])
    engine.age += KEPT_SECONDS
    engine.usage.set_runs([TWO])
    engine.age += KEPT_SECONDS
    assert engine.seconds == {TWO: 0}, "it came back"


def test_a_run_with_requests_in_vllm_is_exported_although_it_left() -> None:
    engine = Engine()
    engine.usage.set_runs([ONE])
    engine.start(ONE)
    engine.usage.set_runs([])
    engine.age += 2 * KEPT_SECONDS
    assert engine.seconds == {ONE: engine.age}
    engine.end(ONE)
    engine.age += KEPT_SECONDS
    assert engine.seconds == {ONE: 2 * KEPT_SECONDS}, "its last tokens are exported, too"
    engine.age += 1
    assert engine.seconds == {}


def test_the_number_of_runs_that_left_is_bounded_without_an_export() -> None:
    engine = Engine()
    for number in range(3 * MAX_LISTED_RUNS):
        engine.usage.set_runs(["left-last", f"run-{number}", "stays"])
    engine.usage.set_runs(["another", "stays"])
    assert len(engine.usage._runs) == MAX_LISTED_RUNS
    former = engine.seconds.keys() - {"another", "stays"}
    assert former == {"left-last", *(f"run-{number}" for number in range(2 * MAX_LISTED_RUNS + 3, 3 * MAX_LISTED_RUNS))}


@pytest.mark.slow
def test_the_age_of_the_process_begins_with_its_start() -> None:
    code = """
import time
begin = time.monotonic()
from rlrun_engine_access.engine_usage import EngineUsage
usage = EngineUsage()
print(time.monotonic() - begin, usage.export(waiting=0)["idleSeconds"])
"""
    begin = time.monotonic()
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
    at_least, age = map(float, found.stdout.split())
    assert at_least < age < time.monotonic() - begin + 0.02, "the start is known to 0.01 s"
