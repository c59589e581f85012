"""CPU time of a look of the operator at a run, with the API server, S3 and the orchestrator in memory.

    python -m bench.looks                 prints the median of some rounds, in ms: first, quiet and waiting looks

Requests cost nothing here, so it shows what observation and plan cost. Compare versions in turns on the same machine.
"""

import argparse
import asyncio
import json
import time

from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun_operator.cache.object_cache import ObjectCache
from rlrun_operator.planning.plan.observation import RunKey

from bench.repetitions import middle
from tests.support.cluster_objects import model_object, run_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import World

KEY = RunKey("team", "reverse")
LOOKS = 40
ROUNDS = 8
KINDS = ("first", "quiet", "waiting")


def new_world() -> World:
    """Return a run that has not begun, and an operator that keeps what it reads."""
    world = World(FakeCluster(run_object(), model_object(), source_secret()))
    world.cache = ObjectCache(time.monotonic)
    return world


async def first_looks() -> float:
    """Return the milliseconds of CPU time of a first look."""
    worlds = [new_world() for _ in range(LOOKS)]
    began = time.process_time()
    for world in worlds:
        await world.reconcile()
    return 1000 * (time.process_time() - began) / LOOKS


async def later_looks(*, trains: bool) -> float:
    """Return the milliseconds of a look at a run that trains, or that waits for its pods, in which nothing is new."""
    world = new_world()
    if trains:
        world.poller.answer, world.poller.watches = RunStatus(phase=RunPhase.running, step=3, max_steps=10), True
        await world.reconcile(2)
        step_kubelet(world.cluster)
    await world.reconcile(5)
    reconciler = world.reconciler()
    began = time.process_time()
    for _ in range(LOOKS):
        await reconciler.reconcile(KEY)
    return 1000 * (time.process_time() - began) / LOOKS


async def measure(kind: str) -> float:
    """Return the milliseconds of a look of this kind."""
    return await (first_looks() if kind == "first" else later_looks(trains=kind == "quiet"))


def main() -> None:
    """Print the result."""
    argparse.ArgumentParser(prog="python -m bench.looks", description=(__doc__ or "").splitlines()[0]).parse_args()
    rounds = [{kind: asyncio.run(measure(kind)) for kind in KINDS} for _ in range(ROUNDS)]
    found = {kind: round(middle([one[kind] for one in rounds]) or 0.0, 2) for kind in KINDS}
    print(json.dumps({"unit": "ms of CPU time", **found}))


if __name__ == "__main__":
    main()
