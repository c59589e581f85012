"""The orchestrator's part of a log-probability's way, from the gateway to the batch of the trainer."""

from tests.support.run_processes import World
from tests.support.walks import LOG_PROBABILITY, CallRecorder, deviations, read_walk


async def test_a_run_takes_the_steps_of_the_walk(world: World) -> None:
    walk = [step for step in read_walk(LOG_PROBABILITY) if "rlrun_orchestrator/" in step.text]
    assert len(walk) > 5
    await world.start()
    with CallRecorder() as calls:
        assert await world.run() == 0
    assert deviations(walk, calls) == []
