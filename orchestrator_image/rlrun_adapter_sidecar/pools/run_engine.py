"""View of a pool's engine that one run has."""

from collections.abc import Sequence

import aiohttp
from rlrun.protocol.shared_pool import engine_name
from typing_extensions import override

from rlrun_adapter_sidecar.engine.vllm_client import PROBE_NAME, Engine


class RunEngine(Engine):
    """Client of the adapters of one run, by their names relative to the run. It can name no other adapter."""

    def __init__(self, http: aiohttp.ClientSession, url: str, load_deadline: float, uid: str) -> None:
        super().__init__(http, url, load_deadline)
        self._uid = uid

    @override
    async def adapters(self) -> list[str]:
        prefix = engine_name(self._uid, "")
        names = [name.removeprefix(prefix) for name in await super().adapters() if name.startswith(prefix)]
        return [name for name in names if name != PROBE_NAME]

    @override
    async def likely_tokens(self, model: str, prompts: Sequence[Sequence[int]]) -> list[dict[str, float]]:
        return await super().likely_tokens(engine_name(self._uid, model), prompts)

    @override
    async def load(self, name: str, path: str) -> None:
        await super().load(engine_name(self._uid, name), path)

    @override
    async def unload(self, name: str) -> None:
        await super().unload(engine_name(self._uid, name))
