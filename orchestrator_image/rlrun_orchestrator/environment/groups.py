"""Running one group of rollouts with verifiers, and saying what came of each rollout as data."""

import asyncio
import logging
import time
import uuid
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient
from rlrun.schema.environment_protocol import failed_rollouts, timed_out
from rlrun.schema.wire import ROLLOUT_ID_HEADER, GroupRequest, GroupResult, Problem, RolloutResult
from verifiers.clients import OpenAIChatCompletionsClient
from verifiers.types import ClientConfig

from rlrun_orchestrator.environment import bounds
from rlrun_orchestrator.environment.containment import COLUMN, TERMS, Terms, cancelled_from_outside, contain, raised
from rlrun_orchestrator.environment.loaded import Loaded, row_of
from rlrun_orchestrator.environment.rewards import watch_rewards
from rlrun_orchestrator.environment.timing import milliseconds

log = logging.getLogger(__name__)

REQUEST_RETRIES = 3
"""For requests that never got an answer or got a 5xx; the gateway records only what it answered."""


class GatewayClient(OpenAIChatCompletionsClient):  # type: ignore[misc]
    """verifiers' chat client against one group's gateway URL, on connections that all groups share.

    A policy may draw its end token first. That is an answer like any other, to be scored and learnt from; verifiers'
    own client would turn it into an error and the policy would never see what it did.
    """

    def __init__(self, config: ClientConfig, http: DefaultAioHttpClient) -> None:
        self._http = http
        super().__init__(config)

    def setup_client(self, config: ClientConfig) -> AsyncOpenAI:
        """The gateway asks for no key: it knows the group by its URL."""
        return AsyncOpenAI(
            api_key="none",
            base_url=config.api_base_url,
            max_retries=config.max_retries,
            timeout=config.timeout,
            http_client=self._http,
        )

    async def raise_from_native_response(self, response: Any) -> None:
        """Let empty messages pass; everything else is checked as usual."""
        if response is not None and response.choices and len(response.choices) == 1:
            message = response.choices[0].message
            if message is not None and not message.content and not message.tool_calls:
                message.content = message.content or ""
                return
        await super().raise_from_native_response(response)


class GroupRunner:
    """Rolls examples of one loaded environment out."""

    def __init__(self, loaded: Loaded, folder: Path) -> None:
        self.loaded = loaded
        self.folder = folder
        # One pool of connections: a fresh TLS context and socket per group would cost more than a short rollout. And
        # aiohttp's, because httpx's takes time in the number of its connections for every single request.
        self._http = DefaultAioHttpClient()
        watch_rewards(loaded.environment, folder)
        contain(loaded.environment, folder)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run(self, request: GroupRequest) -> GroupResult:
        """All rollouts of the group, scored together, within `deadline_seconds`; failures are in the rollouts.

        Raises Refusal when there is no such example.
        """
        row = row_of(self.loaded, request.split, request.example_index)
        started = time.monotonic()
        try:
            outputs = await asyncio.wait_for(self._outputs(request, row), request.deadline_seconds)
            rollouts = [_result(output) for output in outputs]
        except TimeoutError:
            rollouts = failed_rollouts(request, timed_out(request))
        return GroupResult(group_id=request.group_id, rollouts=rollouts, seconds=time.monotonic() - started)

    async def _outputs(self, request: GroupRequest, row: dict[str, Any]) -> list[dict[str, Any]]:
        config = ClientConfig(
            client_type="openai_chat_completions",
            api_base_url=request.base_url,
            max_retries=REQUEST_RETRIES,
            timeout=request.deadline_seconds,
            extra_headers_from_state={ROLLOUT_ID_HEADER: "trajectory_id"},
        )
        TERMS.set(Terms.of(request))
        try:
            outputs: list[dict[str, Any]] = await self.loaded.environment.run_group(
                [dict(row) for _ in range(request.rollouts)],
                GatewayClient(config, self._http),
                request.model,
                dict(request.sampling),
                state_columns=["trajectory_id", COLUMN],
            )
            return outputs
        except GeneratorExit:
            raise
        except BaseException as error:
            if cancelled_from_outside(error):
                raise
            # What one rollout raises stays with it (see containment); this is the scoring of the whole group.
            log.exception("group %s failed", request.group_id)
            problem = raised("RolloutFailed", "scoring the group failed: ", error, self.folder)
            return [{COLUMN: problem.to_json_dict()} for _ in range(request.rollouts)]


def _result(output: dict[str, Any]) -> RolloutResult:
    reward = bounds.finite(output.get("reward"))
    stop = output.get("stop_condition")
    return RolloutResult(
        rollout_id=str(output.get("trajectory_id") or uuid.uuid4().hex),
        reward=reward if reward is not None else 0.0,
        metrics=bounds.metrics(output.get("metrics")),
        stop_condition=bounds.clean(str(stop), bounds.MAX_NAME) if stop is not None else None,
        is_truncated=bool(output.get("is_truncated")),
        generation_ms=milliseconds(output.get("timing"), "generation"),
        scoring_ms=milliseconds(output.get("timing"), "scoring"),
        completion=bounds.completion(output.get("completion")),
        error=_problem_of(output, reward),
    )


def _problem_of(output: dict[str, Any], reward: float | None) -> Problem | None:
    noted = output.get(COLUMN)
    if noted:
        return Problem.model_validate(noted)
    error = output.get("error")
    if error:
        text = str(error.get("error_chain_repr") or error.get("error"))
        return Problem(reason="RolloutFailed", message=bounds.clean(text, 600))
    if reward is None:
        return Problem(
            reason="RewardNotFinite", message=f"the rubric gave the reward {bounds.shown(output.get('reward'))}"
        )
    return None
