"""Plays scenarios one after the other, each within its deadline.

The deadline is an alarm of the operating system, because a program in a busy loop never gets as far as
looking at a clock. It interrupts waiting system calls as well, so that the scenarios after a hang are still played.
"""

import asyncio
import inspect
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.chaos.scenario import Hung, Lost, NotReached, NotStruck, Outcome, Result, Scenario

AGAIN_SECONDS = 60.0
"""Seconds until the alarm repeats, for code that swallowed its exception. Cleaning up has to end before."""
DETAIL_LIMIT = 4000


def run_all(scenarios: Iterable[Scenario], stage: Any, done: Callable[[Result], None] = lambda _: None) -> list[Result]:
    """The results in order; `done` is called after each."""
    results = []
    for scenario in scenarios:
        results.append(run_one(scenario, stage))
        done(results[-1])
    return results


def run_one(scenario: Scenario, stage: Any = None) -> Result:
    """Plays one scenario; never raises, and returns within its seconds plus the time that cleaning up takes."""
    started = time.monotonic()
    outcome, detail = Outcome.survived, ""
    try:
        with deadline(scenario.seconds):
            played = scenario.play(stage)
            if inspect.iscoroutine(played):
                asyncio.run(played)
    except Lost as error:
        outcome, detail = Outcome.lost, str(error)
    except NotStruck as error:
        outcome, detail = Outcome.not_struck, str(error)
    except NotReached as error:
        outcome, detail = Outcome.not_reached, str(error)
    except Hung as error:
        outcome, detail = Outcome.hung, str(error)
    except Exception:
        outcome, detail = Outcome.broken, traceback.format_exc()
    return Result(
        scenario.name, scenario.level, scenario.seed, outcome, detail[-DETAIL_LIMIT:], time.monotonic() - started
    )


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise Hung in the main thread after `seconds`."""

    def ring(*_: object) -> None:
        raise Hung(f"not over after {seconds:.0f} s, in:\n{''.join(traceback.format_stack(limit=8))}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
