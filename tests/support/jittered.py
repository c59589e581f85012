"""Strictly on-policy worlds whose engines and environments answer in an order of their own."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.fake_environment import FakeEnvironment
from tests.support.run_processes import World

MakeWorld = Callable[..., Awaitable[World]]
"""make(jitter, **spec): a world that has started; worlds of the same jitter answer in the same order."""


@asynccontextmanager
async def jittered_worlds(folder: Path, **common: Any) -> AsyncIterator[MakeWorld]:
    """Makes worlds, each in a folder of its own, and closes them; `common` holds where a call says nothing else."""
    worlds: list[World] = []

    async def world(jitter: int, **spec: Any) -> World:
        place = folder / str(len(worlds))
        place.mkdir()
        made = World(place)
        worlds.append(made)
        made.environments = {
            name: FakeEnvironment(name, examples=9, reward_of=lambda said: (sum(map(ord, said)) % 4) / 3)
            for name in ("words", "sums")
        }
        for number, engine in enumerate(made.engines):
            engine.seeded, engine.jitter = True, random.Random(10 * jitter + number)
        made.spec = {"maxAsyncLevel": 0, "oversamplingFactor": 1, "seed": 5} | common | spec
        await made.start()
        return made

    try:
        yield world
    finally:
        for made in worlds:
            for server in made.servers:
                await server.close()
