"""Running one group of rollouts with verifiers, and saying what came of each rollout as data."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import verifiers as vf
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from rlrun.schema.wire import ROLLOUT_ID_HEADER, GroupRequest, GroupResult, Problem, RolloutResult, Split
from verifiers.clients import OpenAIChatCompletionsClient
from verifiers.types import ClientConfig, RolloutTiming

from rlrun_orchestrator.answers import Refusal
from rlrun_orchestrator.environment.loading import Loaded, user_line
from rlrun_orchestrator.environment.results import failed_rollouts, timed_out
from rlrun_orchestrator.environment.rewards import COLUMN, finite, watch_rewards

log = logging.getLogger(__name__)

REQUEST_RETRIES = 3
"""For requests that never got an answer or got a 5xx; the gateway records only what it answered."""


class GatewayClient(OpenAIChatCompletionsClient):  # type: ignore[misc]
    """verifiers' chat client against one group's gateway URL, on connections that all groups share.

    A policy may draw its end token first. That is an answer like any other, to be scored and learnt from; verifiers'
    own client would turn it into an error and the policy would never see what it did.
    """

    def __init__(self, config: ClientConfig, http: DefaultAsyncHttpxClient) -> None:
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
        # One pool of connections: a fresh TLS context and socket per group would cost more than a short rollout.
        self._http = DefaultAsyncHttpxClient()
        watch_rewards(loaded.environment, folder)
        _contain_rollouts(loaded.environment, folder)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run(self, request: GroupRequest) -> GroupResult:
        """All rollouts of the group, scored together, within `deadline_seconds`; failures are in the rollouts.

        Raises Refusal when there is no such example.
        """
        row = self._example(request)
        config = ClientConfig(
            client_type="openai_chat_completions",
            api_base_url=request.base_url,
            max_retries=REQUEST_RETRIES,
            timeout=request.deadline_seconds,
            extra_headers_from_state={ROLLOUT_ID_HEADER: "trajectory_id"},
        )
        started = time.monotonic()
        try:
            outputs = await asyncio.wait_for(
                self.loaded.environment.run_group(
                    [dict(row) for _ in range(request.rollouts)],
                    GatewayClient(config, self._http),
                    request.model,
                    dict(request.sampling),
                    state_columns=["trajectory_id", COLUMN],
                ),
                request.deadline_seconds,
            )
            rollouts = [_result(output) for output in outputs]
        except TimeoutError:
            rollouts = failed_rollouts(request, timed_out(request))
        except Exception as error:
            # What one rollout raises stays with it (see _contain_rollouts); this is the scoring of the whole group.
            log.exception("group %s failed", request.group_id)
            where = user_line(error, self.folder)
            message = f"scoring the group failed: {type(error).__name__}: {str(error)[:300]}"
            problem = Problem(reason="RolloutFailed", message=f"{message} (at {where})" if where else message)
            rollouts = failed_rollouts(request, problem)
        return GroupResult(group_id=request.group_id, rollouts=rollouts, seconds=time.monotonic() - started)

    def _example(self, request: GroupRequest) -> dict[str, Any]:
        rows = self.loaded.train
        if request.split is Split.eval and self.loaded.eval is not None:
            rows = self.loaded.eval
        count = len(rows) if rows is not None else 0
        if rows is None or request.example_index >= count:
            message = f"example {request.example_index} of the {request.split} split does not exist: it has {count}"
            raise Refusal(404, Problem(reason="ExampleNotFound", message=message))
        row: dict[str, Any] = rows[request.example_index]
        return row


def _result(output: dict[str, Any]) -> RolloutResult:
    reward = finite(output.get("reward"))
    metrics = {str(k): number for k, v in (output.get("metrics") or {}).items() if (number := finite(v)) is not None}
    return RolloutResult(
        rollout_id=str(output.get("trajectory_id") or uuid.uuid4().hex),
        reward=reward if reward is not None else 0.0,
        metrics=metrics,
        stop_condition=output.get("stop_condition"),
        is_truncated=bool(output.get("is_truncated")),
        completion=output.get("completion"),
        error=_problem_of(output, reward),
    )


def _problem_of(output: dict[str, Any], reward: float | None) -> Problem | None:
    error = output.get("error")
    if error:
        return Problem(reason="RolloutFailed", message=str(error.get("error_chain_repr") or error.get("error"))[:600])
    noted = output.get(COLUMN)
    if noted:
        return Problem.model_validate(noted)
    if reward is None:
        return Problem(reason="RewardNotFinite", message=f"the rubric gave the reward {output.get('reward')!r}")
    return None


def _contain_rollouts(environment: Any, folder: Path) -> None:
    """Keep what the code of one rollout raises inside that rollout.

    verifiers handles only its own exceptions; a KeyError in an environment's `env_response` would otherwise take the
    whole group down and leave its other rollouts running unobserved.
    """
    original: Callable[..., Awaitable[Any]] = environment.rollout

    async def rollout(input: Any, client: Any, model: str, sampling_args: Any = None) -> Any:
        try:
            return await original(input, client, model, sampling_args)
        except Exception as error:
            log.exception("a rollout failed")
            where = user_line(error, folder)
            words = f"{type(error).__name__}: {str(error)[:300]}"
            state = await environment.init_state(input, client, model, sampling_args)
            state["error"] = vf.Error(f"{words} (at {where})" if where else words)
            state["completion"], state["is_completed"], state["timing"] = [], True, RolloutTiming()
            return state

    environment.rollout = rollout
