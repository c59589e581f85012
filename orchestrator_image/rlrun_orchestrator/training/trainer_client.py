"""Client for the trainer, with one session per run and steps that can be requested repeatedly."""

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel
from rlrun.api.base.received import DEFAULT_LIMITS, limits_of
from rlrun.constants import GONE, ExitCode, Reason
from rlrun.protocol.train_batch import CONTENT_TYPE, BatchBody
from rlrun.protocol.trainer import ORCHESTRATOR_HEADER, CheckpointRequest, SessionSpec, SessionState, StepResult
from rlrun.service.access import UNAUTHORIZED
from rlrun.service.client import parse, request
from rlrun.service.errors import FatalError, RequestRejected, ServiceUnavailable

M = TypeVar("M", bound=BaseModel)

SHORT_SECONDS = 60.0
UPLOADS_BEHIND = Reason.UPLOADS_BEHIND
"""Reason in a response of the trainer for which the client raises UploadsBehind."""


class SessionLost(Exception):
    """Error for a session that a restarted trainer does not have, or has at a different step."""


class Superseded(FatalError):
    """Error for a session that a newer orchestrator has opened. This process must exit and store nothing more."""


class UploadsBehind(Exception):
    """Error for a trainer whose queue of uploads is full."""


class TrainerClient:
    """Client for one session.

    Requests raise ServiceUnavailable while the trainer does not respond, or while a shared trainer does not know the
    run's token yet, RequestRejected if the trainer rejects the request, SessionLost after the trainer was restarted,
    UploadsBehind if the trainer's upload queue has no slot for a copy, and Superseded if a newer orchestrator has
    opened the session.
    """

    def __init__(
        self, http: aiohttp.ClientSession, url: str, session: str, orchestrator: str, *, is_shared: bool = False
    ) -> None:
        """`orchestrator` is the unique id of this process. `is_shared` is True if the trainer belongs to a shared
        pool.
        """
        self._is_shared = is_shared
        self._http = http
        self._headers = {ORCHESTRATOR_HEADER: orchestrator}
        self._url = f"{url.rstrip('/')}/sessions/{session}"

    async def state(self) -> SessionState:
        """Return the state of this run's session."""
        return await self._call(SessionState, "GET", "", None, SHORT_SECONDS)

    async def open(self, spec: SessionSpec, timeout: float) -> SessionState:
        """Open the session, or return it if it is open. May take as long as loading a checkpoint."""
        body = spec.model_dump_json(by_alias=True, exclude_none=True).encode()
        return await self._call(SessionState, "PUT", "", body, timeout)

    async def step(self, step: int, batch: BatchBody, timeout: float) -> StepResult:
        """Take optimizer step `step` with this batch, or return the existing result of the step.

        If the step was taken with a different batch, `batch_id` in the result names that batch.
        """
        headers = {"Content-Type": CONTENT_TYPE, "Content-Length": str(batch.size)}
        return await self._call(StepResult, "POST", f"/steps/{step}", _pieces(batch), timeout, headers)

    async def checkpoint(self, step: int, orchestrator_state: dict[str, Any]) -> SessionState:
        """Start a checkpoint of the state after `step` steps in the background."""
        body = CheckpointRequest(orchestrator_state=orchestrator_state).model_dump_json(by_alias=True).encode()
        return await self._call(SessionState, "POST", f"/checkpoints/{step}", body, SHORT_SECONDS)

    async def adapter(self, step: int, orchestrator_state: dict[str, Any]) -> SessionState:
        """Start the upload of the adapter after `step` steps in the background. `orchestrator_state` contains the
        adapter's reward.
        """
        body = CheckpointRequest(orchestrator_state=orchestrator_state).model_dump_json(by_alias=True).encode()
        return await self._call(SessionState, "POST", f"/adapters/{step}", body, SHORT_SECONDS)

    async def delete(self) -> None:
        """Close the session. Its unsaved state is lost."""
        await self._send("DELETE", "", None, SHORT_SECONDS, DEFAULT_LIMITS.size)

    async def _call(
        self,
        model: type[M],
        method: str,
        path: str,
        body: bytes | AsyncIterable[bytes | memoryview] | None,
        timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> M:
        return parse(model, await self._send(method, path, body, timeout, limits_of(model).size, headers), self._url)

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterable[bytes | memoryview] | None,
        timeout: float,
        max_bytes: int,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        try:
            return await request(
                self._http,
                method,
                self._url + path,
                body=body,
                timeout=timeout,
                max_bytes=max_bytes,
                headers={**self._headers, **(headers or {})},
            )
        except RequestRejected as error:
            if error.status == GONE:
                raise Superseded(error.problem, ExitCode.RESTART) from error
            if error.status in (404, 409):
                raise SessionLost(str(error)) from error
            if error.status == UNAUTHORIZED and self._is_shared:
                # The trainer of a shared pool knows the run's token only after the operator has sent it.
                raise ServiceUnavailable(error.problem, error.status) from error
            raise
        except ServiceUnavailable as error:
            if error.problem.reason == UPLOADS_BEHIND:
                raise UploadsBehind(error.problem.message) from error
            raise


async def _pieces(batch: BatchBody) -> AsyncIterator[bytes | memoryview]:
    for piece in batch.pieces():
        yield piece
