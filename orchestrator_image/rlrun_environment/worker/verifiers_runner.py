"""Runs groups of rollouts with verifiers, and converts the outputs of verifiers to rollout results."""

import asyncio
import copy
import json
import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.environment import (
    MAX_SHARED_TOKENS,
    ROLLOUT_ID_HEADER,
    ROLLOUT_IDS_HEADER,
    Demonstration,
    DemonstrationRequest,
    GroupRequest,
    GroupResult,
    RolloutResult,
    Split,
    failed_rollouts,
    timed_out,
)
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from verifiers import EnvGroup
from verifiers import types as verifiers_types
from verifiers.clients import OpenAIChatCompletionsClient, OpenAICompletionsClient
from verifiers.types import ClientConfig, Response
from verifiers.utils.message_utils import normalize_messages

from rlrun_environment.phases import WorkPhase
from rlrun_environment.worker.rewards import REWARDS_KEY, watch_rewards
from rlrun_environment.worker.shared_requests import SharedRequests
from rlrun_environment.worker.user_code import sanitize
from rlrun_environment.worker.user_code.demonstrations import demonstrate
from rlrun_environment.worker.user_code.isolation import (
    GROUP_LIMITS,
    PROBLEM_KEY,
    GroupLimits,
    RolloutFailedError,
    cancelled_from_outside,
    isolate_rollouts,
    isolated_demonstration,
    isolated_group,
    user_code_problem,
)
from rlrun_environment.worker.user_code.load_error import LoadError
from rlrun_environment.worker.user_code.loaded import Loaded, present_fields, row_of
from rlrun_environment.worker.user_code.progress import PROGRESS, WorkProgress, in_phase

log = logging.getLogger(__name__)

REQUEST_RETRIES = 3
"""Number of retries of a request that got no response or status 5xx. The gateway records only answered requests."""
CHECK_SECONDS = 60.0


class _OnSharedConnections:
    """verifiers client for one group's gateway URL, which uses connections shared by all groups."""

    def __init__(self, config: ClientConfig, http: DefaultAioHttpClient) -> None:
        self._http = http
        super().__init__(config)  # type: ignore[call-arg]  # subclasses also inherit from a client of verifiers

    def setup_client(self, config: ClientConfig) -> AsyncOpenAI:
        """Create the OpenAI client. The gateway needs no key, because the URL identifies the group."""
        return AsyncOpenAI(
            api_key="none",
            base_url=config.api_base_url,
            max_retries=config.max_retries,
            timeout=config.timeout,
            http_client=self._http,
        )


class GatewayTextClient(_OnSharedConnections, OpenAICompletionsClient):  # type: ignore[misc]
    """Client for environments with the message type `completion`, whose prompts are texts without a chat template."""

    async def get_native_response(
        self, prompt: str, model: str, sampling_args: Mapping[str, Any], tools: Any = None, **options: Any
    ) -> Any:
        """Return the completion. verifiers' own client would drop the header with the rollout's id."""
        given = {**sampling_args, **(sampling_args.get("extra_body") or {})}
        body = {name: value for name, value in given.items() if name != "extra_body" and value is not None}
        sent = {"extra_body": body, "extra_headers": options.get("extra_headers")}
        return await super().get_native_response(prompt, model, sent, tools)

    async def raise_from_native_response(self, response: Any) -> None:
        """Accept empty texts and check everything else as verifiers does."""
        if response is None or not response.choices or len(response.choices) != 1:
            await super().raise_from_native_response(response)


GREEDY_TEMPERATURE = 1e-5
"""Temperature below which vLLM samples greedily, and rejects `n` above 1."""


class GatewayClient(_OnSharedConnections, OpenAIChatCompletionsClient):  # type: ignore[misc]
    """Client for environments whose message type is not `completion`.

    A policy may sample its end token first. Such an empty completion is scored and trained on like any other;
    verifiers' own client would turn it into an error, and the policy would never get a reward for it.

    Equal first requests of the group's rollouts become one request.
    """

    def __init__(self, config: ClientConfig, http: DefaultAioHttpClient) -> None:
        super().__init__(config, http)
        self._shared = SharedRequests(self._send_shared)

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Mapping[str, Any], tools: Any = None, **options: Any
    ) -> Any:
        """Return the completion. Equal first requests of the group's rollouts are sent as one request."""
        headers = options.get("extra_headers") or {}
        content = None
        if set(headers) == {ROLLOUT_ID_HEADER} and options.keys() <= {"extra_headers", "state"}:
            content = _shareable_content(prompt, model, sampling_args, tools)
        if content is not None:
            response = await self._shared.response(headers[ROLLOUT_ID_HEADER], content)
            if response is not None:
                return response
        return await super().get_native_response(prompt, model, sampling_args, tools, **options)

    async def _send_shared(self, content: str, rollouts: Sequence[str]) -> list[Any]:
        prompt, model, sampling_args, tools = json.loads(content)
        # If it fails, each rollout sends its own request, with retries.
        client = OpenAIChatCompletionsClient(self.client.with_options(max_retries=0))
        answer = await client.get_native_response(
            prompt,
            model,
            sampling_args | {"n": len(rollouts)},
            tools,
            extra_headers={ROLLOUT_IDS_HEADER: ",".join(rollouts)},
        )
        return [
            answer.model_copy(update={"choices": [choice], "usage": (choice.model_extra or {}).pop("usage", None)})
            for choice in answer.choices
        ]

    async def raise_from_native_response(self, response: Any) -> None:
        """Accept empty messages and check everything else as verifiers does."""
        if response is not None and response.choices and len(response.choices) == 1:
            message = response.choices[0].message
            if message is not None and not message.content and not message.tool_calls:
                message.content = message.content or ""
                return
        await super().raise_from_native_response(response)

    async def from_native_response(self, response: Any) -> Response:
        """Return verifiers' response, in which an empty text stays a text.

        verifiers would turn it into null and send it in the next turn, next to null tool calls, which vLLM rejects.
        """
        answer = await super().from_native_response(response)
        if answer.message.content is None and not answer.message.tool_calls:
            answer.message.content = ""
        return answer


def _shareable_content(prompt: Any, model: str, sampling_args: Mapping[str, Any], tools: Any) -> str | None:
    """Return the content of a request that rollouts may share, as JSON. Returns None if its response may be long, or if
    engines do not accept `n` for it.
    """
    limit, temperature = sampling_args.get("max_tokens"), sampling_args.get("temperature", 1.0)
    if not isinstance(limit, int) or limit > MAX_SHARED_TOKENS or "n" in sampling_args:
        return None
    if not isinstance(temperature, int | float) or temperature < GREEDY_TEMPERATURE:
        return None
    if sampling_args.get("top_logprobs") or (sampling_args.get("extra_body") or {}).get("top_logprobs"):
        return None
    # verifiers reports values that JSON does not have.
    with suppress(TypeError, ValueError):
        return json.dumps([prompt, model, sampling_args, tools])
    return None


class VerifiersRunner:
    """Runner for rollouts of one loaded verifiers environment."""

    rollouts_at_once: int | None = None

    def __init__(self, loaded: Loaded, folder: Path) -> None:
        self.loaded = loaded
        self.folder = folder
        # Use one connection pool: a new TLS context and socket per group would cost more than a short rollout. Use
        # aiohttp's, because httpx's needs time proportional to its connections for every request.
        self._http = DefaultAioHttpClient()
        watch_rewards(loaded.environment, folder)
        isolate_rollouts(loaded.environment, folder)
        self._said: set[str] = set()
        """Fields of the environment's `sampling_args` whose override was logged."""

    async def check_example(self) -> None:
        """Prepare the first example as a rollout would. Raises LoadError if this fails or exceeds `CHECK_SECONDS`."""
        split = Split.train if self.loaded.train_examples else Split.eval
        client = GatewayClient(ClientConfig(client_type="openai_chat_completions"), self._http)
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                environment, row = _of_group(self.loaded.environment, self._row(split, 0))
                state = await environment.init_state(row, client, "")
                await client.to_native_prompt(state["prompt"])
                for tool in state["tool_defs"]:
                    await client.to_native_tool(tool)
        except GeneratorExit:
            raise
        except BaseException as error:
            if cancelled_from_outside(error):
                raise
            what = f"the environment loads, but example 0 of its {split} split fails: "
            problem = user_code_problem(Reason.ENVIRONMENT_LOAD_FAILED, what, error, self.folder)
            raise LoadError(problem.reason, in_phase(WorkPhase.prepare, problem).message) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @isolated_group
    async def run(self, request: GroupRequest) -> GroupResult:
        """Run and score all rollouts of the group within `deadline_seconds`. Failures are returned as part of the
        rollouts.

        Raises ProblemError if the example does not exist.
        """
        row = self._row(request.split, request.example_index)
        started = time.monotonic()
        progress = WorkProgress()
        PROGRESS.set(progress)
        try:
            outputs = await asyncio.wait_for(self._outputs(request, row), request.deadline_seconds)
        except TimeoutError:
            problem = in_phase(progress.phase, timed_out(request))
            prompt, rollouts = row.get("prompt"), failed_rollouts(request, problem)
        else:
            prompt = next((output["prompt"] for output in outputs if output.get("prompt")), row.get("prompt"))
            rollouts = [_result(output, prompt) for output in outputs]
        return GroupResult(
            group_id=request.group_id,
            rollouts=rollouts,
            seconds=time.monotonic() - started,
            example=sanitize.example(prompt, row),
        )

    @isolated_demonstration
    async def demonstrate(self, request: DemonstrationRequest) -> Demonstration:
        """Return an example's prompt and answer as a rollout would send them: with the tools of the environment or the
        example, and with messages in the client's form. Raises ProblemError.

        Excludes messages and tools that the environment adds when a rollout starts (`setup_state`).
        """
        shown = demonstrate(self.loaded, request)
        client = GatewayClient(ClientConfig(client_type="openai_chat_completions"), self._http)
        try:
            environment, row = _of_group(self.loaded.environment, self._row(request.split, request.example_index))
            state = await environment.init_state(row, client, "")
            prompt, _ = await client.to_native_prompt(state.get("prompt") or normalize_messages(shown.prompt))
            completion, _ = await client.to_native_prompt(normalize_messages(shown.completion))
            tools = [await client.to_native_tool(tool) for tool in state["tool_defs"]]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = (
                f"verifiers cannot read example {request.example_index} of the {request.split} split as messages and "
                f"tools: {sanitize.truncate_text(str(error), 600)}. Correct its `prompt`, `completion` and `info`."
            )
            raise ProblemError(UNPROCESSABLE, Problem(reason=Reason.DEMONSTRATIONS_INVALID, message=message)) from error
        return Demonstration(prompt=_present(prompt), completion=_present(completion), tools=_present(tools))

    def _row(self, split: Split, index: int) -> dict[str, Any]:
        """Return the example for verifiers. Raises ProblemError.

        Null fields are removed from messages and tools, from which verifiers builds requests. A `task` that verifiers
        cannot read is removed too. Other values are unchanged.
        """
        row = row_of(self.loaded, split, index)
        if not _is_payload(row.get("task")):
            del row["task"]
        present = present_fields(row, self.loaded, split)
        info = row.get("info")
        if isinstance(info, Mapping):
            # None in `tool_defs` would hide the environment's tools.
            tools = {key: value for key, value in present["info"].items() if key == "tool_defs"}
            row["info"] = {key: value for key, value in info.items() if key != "tool_defs"} | tools
        return row | {key: present[key] for key in ("prompt",) if key in row}

    async def _outputs(self, request: GroupRequest, row: dict[str, Any]) -> list[dict[str, Any]]:
        config = ClientConfig(
            client_type="openai_chat_completions",
            api_base_url=request.base_url,
            max_retries=REQUEST_RETRIES,
            timeout=request.deadline_seconds,
            extra_headers_from_state={ROLLOUT_ID_HEADER: "trajectory_id"},
        )
        GROUP_LIMITS.set(GroupLimits.of(request))
        try:
            played, _ = _of_group(self.loaded.environment, row)
            if getattr(played, "message_type", "chat") == "completion":
                client: Any = GatewayTextClient(config, self._http)
            else:
                client = GatewayClient(config, self._http)
            outputs: list[dict[str, Any]] = await self.loaded.environment.run_group(
                [dict(row) for _ in range(request.rollouts)],
                client,
                request.model,
                self._sampling(request),
                state_columns=["trajectory_id", PROBLEM_KEY, REWARDS_KEY],
            )
            return outputs
        except GeneratorExit:
            raise
        except BaseException as error:
            if cancelled_from_outside(error):
                raise
            # A rollout's own exception is recorded in its state, so this one was raised outside of the rollouts.
            log.exception("Group %s failed", request.group_id)
            if isinstance(error, RolloutFailedError):
                problem = error.problem
            else:
                problem = user_code_problem(Reason.ROLLOUT_FAILED, "the group failed: ", error, self.folder)
                problem = in_phase(PROGRESS.get().phase, problem)
            return [{PROBLEM_KEY: problem.to_json_dict()} for _ in range(request.rollouts)]

    def _sampling(self, request: GroupRequest) -> dict[str, Any]:
        """Return the environment's `sampling_args`, merged with the run's as in verifiers' evaluation. The run's values
        take precedence.
        """
        own = {**(getattr(self.loaded.environment, "sampling_args", None) or {})}
        # The gateway returns a single completion, because a rollout is one conversation.
        own.pop("n", None)
        for name in sorted(own.keys() & request.sampling.keys() - self._said):
            if own[name] != request.sampling[name]:
                self._said.add(name)
                log.warning(
                    "sampling_args of the environment sets %s = %s; using the run's %s instead",
                    *(name, sanitize.short_repr(own[name]), request.sampling[name]),
                )
        return copy.deepcopy(own) | dict(request.sampling)


def _is_payload(task: Any) -> bool:
    """Return True if verifiers can read a row's column `task`, which is reserved for serialized tasks of tasksets.

    Before verifiers 0.2 the column was text. Later versions reject rollouts whose row has anything but a serialized
    task.
    """
    normalize = getattr(verifiers_types, "normalize_task_payload", None)
    if task is None or normalize is None:
        return True
    try:
        normalize(task)
    except (ValueError, TypeError):
        return False
    return True


def _of_group(environment: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the environment to which the row belongs, which is a member if `environment` is a group, and the row in
    the form that this environment expects.
    """
    while isinstance(environment, EnvGroup):
        name, row, _ = environment._route_child_input(row)
        environment = environment.get_env_for_name(name)
    return environment, row


def _present(entries: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if value is not None} for entry in entries]


def _result(output: dict[str, Any], prompt: Any) -> RolloutResult:
    reward = sanitize.to_finite_float(output.get("reward"))
    stop = output.get("stop_condition")
    return RolloutResult(
        rollout_id=str(output.get("trajectory_id") or uuid.uuid4().hex),
        reward=reward if reward is not None else 0.0,
        rewards=sanitize.rewards(output.get(REWARDS_KEY)),
        metrics=sanitize.metrics(output.get("metrics")),
        stop_condition=sanitize.truncate_text(str(stop), sanitize.MAX_NAME) if stop is not None else None,
        is_truncated=bool(output.get("is_truncated")),
        generation_ms=milliseconds(output.get("timing"), "generation"),
        scoring_ms=milliseconds(output.get("timing"), "scoring"),
        prompt=sanitize.completion(own) if (own := output.get("prompt")) != prompt else None,
        completion=sanitize.completion(output.get("completion")),
        error=_problem_of(output, reward),
    )


def _problem_of(output: dict[str, Any], reward: float | None) -> Problem | None:
    recorded = output.get(PROBLEM_KEY)
    if recorded:
        return Problem.model_validate(recorded)
    error = output.get("error")
    if error:
        text = str(error.get("error_chain_repr") or error.get("error"))
        problem = Problem(reason=Reason.ROLLOUT_FAILED, message=sanitize.truncate_text(text, 600))
        return in_phase(WorkPhase.rollout, problem)
    if reward is None:
        shown = sanitize.short_repr(output.get("reward"))
        message = f"The rubric returned the reward {shown} instead of a finite number."
        return in_phase(WorkPhase.score, Problem(reason=Reason.REWARD_NOT_FINITE, message=message))
    return None


def milliseconds(timing: Any, phase: str) -> float | None:
    """Return the milliseconds of a phase (`generation`, `scoring`), or None if verifiers did not measure the phase."""
    span = timing.get(phase) if isinstance(timing, Mapping) else None
    if not isinstance(span, Mapping):
        return None
    start, end = span.get("start"), span.get("end")
    if not isinstance(start, int | float) or not isinstance(end, int | float) or not 0.0 < start <= end:
        return None
    duration = 1000.0 * (end - start)
    return duration if math.isfinite(duration) else None
