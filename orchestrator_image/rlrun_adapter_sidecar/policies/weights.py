"""Loads full weights into one replica, for runs that train all weights. The engine holds one version at a time.

A new version replaces the previous one while requests wait, so nothing is ever unloaded. The engine itself stores the
version's name. After an engine restart the name is missing, which shows that the base model's weights are loaded.
"""

import asyncio

from rlrun.constants import Reason
from rlrun.protocol.inference import AdapterList
from rlrun.protocol.policy import POLICY_PREFIX, PolicyKind, PolicyRef
from rlrun.service.errors import ProblemError
from typing_extensions import override

from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.engine.vllm_client import Engine
from rlrun_adapter_sidecar.policies.policy_loader import PolicyLoader


class FullWeightsLoader(PolicyLoader):
    """Loader of full weights.

    At most two versions are on disk: the engine's current one and the next one.
    """

    kind = PolicyKind.weights
    served = "full weights"

    def __init__(self, engine: Engine, files: PolicyFiles) -> None:
        super().__init__(engine, files)
        self._one_at_a_time = asyncio.Lock()

    @override
    async def list(self) -> AdapterList:
        """Return the version in the engine, or an empty list if the engine has the base model's weights or is
        replacing its weights.
        """
        name = await self._engine.weight_version()
        names = [name] if name.startswith(POLICY_PREFIX) else []
        self.metrics.adapters.set(len(names))
        return AdapterList(adapters=names)

    @override
    async def load(self, policy: PolicyRef) -> AdapterList:
        seconds = await self._load_once(policy)
        listed = await self.list()
        if policy.name not in listed.adapters:
            found = ", ".join(listed.adapters) or "its base weights"
            message = f"the engine accepted {policy.name} but now has {found}; retry"
            raise ProblemError.of(503, Reason.WEIGHTS_LOAD_REJECTED, message)
        return listed.model_copy(update={"load_seconds": seconds})

    @override
    async def unload(self, name: str) -> AdapterList:
        """Return what the engine serves. Nothing is unloaded, because a new version replaces the old one."""
        return await self.list()

    @override
    async def _load(self, policy: PolicyRef) -> float | None:
        async with self._one_at_a_time:
            loaded = (await self.list()).adapters
            if policy.name in loaded:
                return None
            await self._files.keep_only({*loaded, policy.name})
            return await super()._load(policy)

    @override
    async def _load_into_engine(self, policy: PolicyRef) -> None:
        path = await self._files.fetch(policy)
        await self._engine.replace_weights(policy.name, str(path))
