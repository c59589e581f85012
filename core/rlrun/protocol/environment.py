"""Messages between the orchestrator and environment servers, and the configuration of the servers.

    GET  /healthz /readyz /metrics
    GET  /info                                    -> EnvironmentInfo
    POST /groups           GroupRequest           -> GroupResult
    POST /demonstrations   DemonstrationRequest   -> Demonstration

The operator writes `EnvironmentConfig` as JSON into the variable `RLRUN_ENVIRONMENT` of an environment's pod. The
environment server and its workers read it there.
"""

import hashlib
import json
import math
import re
import uuid
from collections.abc import Mapping
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)

from rlrun.api.base.names import Text, Url, package_id, package_name
from rlrun.api.base.received import InputInvalid, InputLimits, parse, to_input_invalid
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

VARIABLE = "RLRUN_ENVIRONMENT"
MAX_ARGUMENT_BYTES = 127 * 1024
"""Maximum total size in bytes of args, taskset and harness of an environment, as JSON. Linux limits each environment
variable to 128 KiB, and the other fields of `EnvironmentConfig` take less than 1 KiB.
"""
MAX_REQUEST_BYTES = 16 * 1024**2
"""Maximum size of a request body for the server and its workers."""
MAX_RESPONSE_BYTES = 256 * 1024**2
"""Maximum size of a response from a worker or the server, whose content user code may control."""
BYTES_PER_ROLLOUT = 4 * 1024**2
"""Maximum size in bytes of one rollout, or of the example, in a `GroupResult`. Longer texts and metrics are truncated.
"""
MAX_METRICS = 128
"""Maximum number of metrics of a rollout that are kept."""
MAX_METRIC_NAME = 256
"""Maximum length of a metric name. Metrics with longer names are dropped. The worker truncates names to fewer
characters.
"""
MAX_ROLLOUTS = 4096
MAX_ENTRIES = 4096
"""Maximum number of entries in an object or a list of a message."""
MAX_VALUES = 1_000_000
"""Maximum number of values in a response: a few thousand per rollout, and the columns of the dataset."""
ROLLOUT_SHARE = 0.9
"""Share of a group's deadline that its rollouts may use. The rest is reserved for scoring finished rollouts."""


Message = Annotated[dict[str, Any], Field(max_length=MAX_ENTRIES)]
"""Chat message or tool in the format of the OpenAI API."""
_RESPONSE = InputLimits(size=MAX_RESPONSE_BYTES, values=MAX_VALUES)


def linked_secret(environment_id: str) -> str:
    """Return the name of the Secret with the variables of an environment, `env.owner.name` for owner/name.

    The name is normalized, so that all spellings of a package share one Secret. If the owner contains dots or
    characters that are invalid in Secret names, a digest of the id is appended, so that packages do not collide.
    """
    owner, _, name = package_id(environment_id).partition("/")
    if all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", part) for part in (owner, name)):
        return f"env.{owner}.{name}"
    parts = [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in (owner, name)]
    return f"env.{parts[0]}.{parts[1]}.{hashlib.sha256(f'{owner}/{name}'.encode()).hexdigest()[:12]}"


class EnvironmentConfig(Schema):
    """Configuration of one environment. Unknown fields are ignored: operator and image may differ in version."""

    model_config = ConfigDict(extra="ignore")
    wire_limits = InputLimits(values=MAX_ARGUMENT_BYTES)

    id: str = Field(max_length=1024, pattern=r"^([A-Za-z0-9._-]+/)?[A-Za-z0-9._-]+(@[A-Za-z0-9._+!-]+)?$")
    """`owner/name[@version]`. If the owner is omitted, the module must be part of the image."""
    name: Text = ""
    """Name of the environment in the run. Empty means the package's name."""
    args: dict[str, Any] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    """Keyword arguments of `load_environment`, passed unchanged."""
    taskset: dict[str, Any] | None = Field(default=None, max_length=MAX_ENTRIES)
    harness: dict[str, Any] | None = Field(default=None, max_length=MAX_ENTRIES)
    workers: int = Field(default=1, ge=1, le=64)
    """Number of processes that run rollouts."""
    packages_url: Url | None = None
    """Base URL of the packages, which serves the wheels at `/environments/{owner}/{name}`."""

    @classmethod
    def from_variables(cls, environ: Mapping[str, str]) -> "EnvironmentConfig":
        """Read the configuration from `RLRUN_ENVIRONMENT`. Raises ValueError, which names the invalid field."""
        text = environ.get(VARIABLE)
        if not text:
            raise ValueError(f"{VARIABLE} is not set. Set it to the configuration as JSON, at least `id`.")
        try:
            return parse(cls, text, VARIABLE)
        except InputInvalid as error:
            cause = str(error).rstrip(".")
            raise ValueError(f"{cause}. Correct the environment's args, taskset and harness.") from None

    def to_variable(self) -> str:
        """Return the value of `RLRUN_ENVIRONMENT`. Keys are sorted, so that pods do not restart if the configuration is
        equal.
        """
        return json.dumps(self.to_json_dict(), sort_keys=True)

    @property
    def owner(self) -> str | None:
        """Owner of the package, or None for a module in the image."""
        return self.id.split("/")[0] if "/" in self.id else None

    @property
    def package(self) -> str:
        """Name of the package without owner and version. The name of a pushed package is normalized."""
        name = self.id.split("/")[-1].split("@")[0]
        return name if self.owner is None else package_name(name)

    @property
    def version(self) -> str | None:
        """Requested version of the package, or None for the newest version."""
        return self.id.partition("@")[2] or None

    @property
    def load_args(self) -> dict[str, Any]:
        """Arguments of `load_environment`. As in verifiers' tools, taskset and harness become the argument `config`.
        Raises ValueError if `args.config` is not a table or also sets one of them.
        """
        sections = {key: value for key, value in (("taskset", self.taskset), ("harness", self.harness)) if value}
        if not sections:
            return dict(self.args)
        config = self.args.get("config", {})
        if not isinstance(config, Mapping) or set(config) & set(sections):
            raise ValueError("args.config must be a table that does not also set `taskset` or `harness`")
        return {**self.args, "config": {**config, **sections}}


ROLLOUT_ID_HEADER = "X-Rollout-Id"
ROLLOUT_IDS_HEADER = "X-Rollout-Ids"
"""Header of a request that generates the first turn of several rollouts. Contains the ids of the rollouts, separated by
commas. The request's `n` is the number of ids, and choice i of the response belongs to rollout i.
"""
MAX_SHARED_TOKENS = 512
"""Maximum number of completion tokens per rollout in a shared request to the engine. All rollouts of a shared request
wait for the longest completion, and if completions are longer, the cost of separate requests is negligible.
"""
MAX_SHARED_ROLLOUTS = 64
"""Maximum number of ids in ROLLOUT_IDS_HEADER."""


class EnvironmentInfo(Schema):
    """State of an environment server and its dataset sizes."""

    name: Text
    id: Text
    version: Text | None = None
    ready: bool
    problem: Problem | None = None
    train_examples: int = 0
    eval_examples: int = 0
    workers: int = Field(default=1, ge=1)
    """Number of processes that run rollouts."""
    rollouts_at_once: int | None = Field(default=None, ge=1)
    """Maximum number of concurrent rollouts of a worker, or None for no limit. A rollout's time limit
    begins when the rollout starts, not while it waits.
    """


class Split(StrEnum):
    """Dataset of an environment that an example comes from."""

    train = "train"
    eval = "eval"


class GroupRequest(Schema):
    """Request for `rollouts` rollouts of one example, which are scored together.

    An environment with several agents runs `rollouts` episodes, each with one rollout per trained agent.
    """

    wire_limits = InputLimits(size=MAX_REQUEST_BYTES)

    group_id: Text
    example_index: int = Field(ge=0)
    split: Split = Split.train
    rollouts: int = Field(ge=1)
    base_url: Url
    """Base URL of the OpenAI API: the orchestrator's gateway, for this group."""
    model: Text
    sampling: dict[str, Any] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    """Sampling arguments of the OpenAI API (temperature, max_tokens, ...)."""
    deadline_seconds: float = Field(gt=0)
    """Time limit of the group in seconds, including scoring and the time that rollouts wait before they start."""
    rollout_seconds: float | None = Field(default=None, gt=0)
    """Time limit of each rollout in seconds. Defaults to the share `ROLLOUT_SHARE` of the deadline."""
    score: bool = True
    """If true, the reward functions are run. If false, all rewards are 0."""


class DemonstrationRequest(Schema):
    """Request for the prompt of an example and the correct answer."""

    example_index: int = Field(ge=0)
    split: Split = Split.train


class Demonstration(Schema):
    """Prompt of an example and its answer in the dataset, as chat messages."""

    wire_limits = _RESPONSE

    prompt: list[Message] = Field(min_length=1, max_length=MAX_ENTRIES)
    completion: list[Message] = Field(min_length=1, max_length=MAX_ENTRIES)
    tools: list[Message] = Field(default_factory=list, max_length=MAX_ENTRIES)
    """Tools that the environment's rollouts send with the prompt, as in the OpenAI API."""


class FunctionReward(Schema):
    """Result of one reward function. The sum of value times weight over all functions is the reward."""

    model_config = ConfigDict(extra="ignore")

    value: float = Field(allow_inf_nan=False)
    weight: float = Field(allow_inf_nan=False)


class RolloutResult(Schema):
    """Result of one rollout. The gateway has recorded its tokens. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    rollout_id: Text
    """Id that the environment sent as X-Rollout-Id."""
    agent: str | None = Field(default=None, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")
    """Name of the agent, in an environment with agents."""
    episode: Text | None = None
    """Id of the episode, which has one rollout per agent. If unset, the rollout is an episode by itself."""
    reward: float
    rewards: dict[Text, FunctionReward] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    """Results of the individual reward functions, except those with weight 0. Empty if the environment does not report
    them.
    """
    metrics: dict[str, float] = Field(default_factory=dict, max_length=MAX_VALUES)
    stop_condition: Text | None = None
    is_truncated: bool = False
    generation_ms: float | None = Field(ge=0, default=None)
    """Milliseconds from the first request to the last response, including tools and waiting."""
    scoring_ms: float | None = Field(ge=0, default=None)
    """Milliseconds spent in reward functions. The time of group functions counts for each rollout of the group."""
    prompt: Any = None
    """Prompt as messages, if it differs from the prompt of the example."""
    completion: Any = None
    """Conversation as messages, for the rollout log."""
    error: Problem | None = None
    """Cause of a failure of the rollout or its scoring. Failed rollouts are counted but not trained on."""

    @field_validator("metrics")
    @classmethod
    def _keep_finite(cls, metrics: dict[str, float]) -> dict[str, float]:
        # Drop non-finite values, which would spoil the mean of the whole batch. The worker is user code and need not
        # respect limits.
        usable = ((n, v) for n, v in metrics.items() if math.isfinite(v) and len(n) <= MAX_METRIC_NAME)
        return dict(islice(usable, MAX_METRICS))


def _result_or_error(value: Any, validate: ValidatorFunctionWrapHandler) -> RolloutResult:
    """Replace an invalid result with a failed rollout, so that the other rollouts of the group count."""
    try:
        result: RolloutResult = validate(value)
    except ValidationError as error:
        entry = value if isinstance(value, Mapping) else {}
        message = str(to_input_invalid(error, "the environment returned an invalid result for this rollout"))
        return RolloutResult(
            rollout_id=str(entry.get("rolloutId") or uuid.uuid4().hex),
            reward=0.0,
            error=Problem(reason=Reason.ANSWER_INVALID, message=message[:1000]),
        )
    return result


class ExampleContent(Schema):
    """Example of a group, for the rollout log."""

    model_config = ConfigDict(extra="ignore")

    prompt: Any = None
    """Prompt of the group's first rollout as messages."""
    answer: Any = None
    """Expected answer in the dataset."""
    info: Any = None
    """Column `info` of the dataset."""


class GroupResult(Schema):
    """Results of a group's rollouts. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")
    wire_limits = _RESPONSE

    group_id: Text
    rollouts: list[Annotated[RolloutResult, WrapValidator(_result_or_error)]] = Field(max_length=MAX_ROLLOUTS)
    seconds: float
    example: ExampleContent | None = None
    """Example of the group, or None if the environment does not report it."""


def max_result_bytes(rollouts: int) -> int:
    """Return the maximum size of a `GroupResult` with this number of rollouts, as JSON."""
    return min(BYTES_PER_ROLLOUT * (rollouts + 1), MAX_RESPONSE_BYTES)


def timed_out(request: GroupRequest) -> Problem:
    """Return the problem to report for the rollouts of a group that missed its deadline."""
    return Problem(
        reason=Reason.ENVIRONMENT_TIMEOUT,
        message=f"the group did not end within {request.deadline_seconds:g} s: look for rollouts or reward functions "
        "that hang, raise the environment's rolloutTimeoutSeconds, or use a larger infrastructure.computeSize",
    )


def failed_rollouts(request: GroupRequest, problem: Problem) -> list[RolloutResult]:
    """Return one failed result per requested rollout, with new ids because the actual ids are unknown."""
    return [RolloutResult(rollout_id=uuid.uuid4().hex, reward=0.0, error=problem) for _ in range(request.rollouts)]
