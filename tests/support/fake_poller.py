"""Orchestrator's /status, as the operator sees it."""

from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ServiceUnavailable


class FakePoller:
    def __init__(self) -> None:
        self.answer: RunStatus | None = None

    async def status(self, namespace: str, name: str, token: str | None = None) -> RunStatus:
        if self.answer is None:
            raise ServiceUnavailable(Problem(reason="Unreachable", message="nobody answers"))
        return self.answer
