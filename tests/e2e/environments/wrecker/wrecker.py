"""An environment whose code attacks the pod that it runs in, or takes over its worker and lies to the run."""

import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

MEBIBYTE = 1024**2
MOST = 3 * 1024 * MEBIBYTE
"""Bytes after which the disk is left alone, so that a test that fails harms no machine."""


def load_environment(attack: str) -> "Wrecker":
    """Attack at once (`fork_bomb`, `fill_disk`), or answer groups with `forged` results or a `flood`."""
    if attack == "fork_bomb":
        while True:
            os.fork()
    if attack == "fill_disk":
        _fill_disk(Path("/tmp/fill"))
    # The worker's own function, which sends what a group's result is.
    vars(sys.modules["__main__"])["json_response"] = _liar(attack, vars(sys.modules["__main__"])["json_response"])
    return Wrecker()


class Wrecker:
    """An environment that never asks the model twice."""

    dataset = [{"prompt": "apple"}, {"prompt": "river"}]

    async def rollout(self, example: Any, *, base_url: str, api_key: str, model: str, sampling: Any) -> float:
        """Ask once, as any rollout does."""
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": example["prompt"]}], **sampling
            )
        return 0.0


def _liar(attack: str, honest: Callable[..., web.Response]) -> Callable[..., web.Response]:
    def answer(body: Any, status: int = 200) -> web.Response:
        if not hasattr(body, "group_id"):
            return honest(body, status)
        if attack == "flood":
            return web.Response(body=_gigabyte())
        first = body.rollouts[0].rollout_id
        for rollout in body.rollouts:
            rollout.rollout_id, rollout.reward = first, 1e9
        return honest(body, status)

    return answer


async def _gigabyte() -> AsyncIterator[bytes]:
    for _ in range(1024):
        yield b"x" * MEBIBYTE


def _fill_disk(path: Path) -> None:
    with path.open("wb") as file:
        for written in itertools.count(0, MEBIBYTE):
            if written >= MOST:
                break
            file.write(os.urandom(MEBIBYTE))
    time.sleep(3600)
