"""Configuration of environment servers, and results of groups that ended without an answer.

The operator writes `EnvironmentConfig` as JSON into the variable `RLRUN_ENVIRONMENT` of an environment's pod. The
environment server and its workers read it there.
"""

import json
import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

VARIABLE = "RLRUN_ENVIRONMENT"
MAX_REQUEST_BYTES = 16 * 1024**2
"""Largest request body that the server and its workers accept."""


class EnvironmentConfig(Schema):
    """Configuration of one environment. Unknown fields are ignored: operator and image may differ in version."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(pattern=r"^([A-Za-z0-9._-]+/)?[A-Za-z0-9._-]+(@[A-Za-z0-9._+!-]+)?$")
    """`owner/name[@version]`. Without an owner the module must be part of the image."""
    name: str = ""
    """Name of the environment in the run. Empty means the package's name."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of `load_environment`, unchanged."""
    taskset: dict[str, Any] | None = None
    harness: dict[str, Any] | None = None
    workers: int = Field(default=1, ge=1, le=64)
    """Number of processes that run rollouts."""
    packages_url: str | None = None
    """Base URL of the packages: `/environments/{owner}/{name}` below it serves the wheels."""

    @classmethod
    def from_variables(cls, environ: Mapping[str, str]) -> "EnvironmentConfig":
        """Read the configuration from `RLRUN_ENVIRONMENT`. Raises ValueError that names what does not fit."""
        text = environ.get(VARIABLE)
        if not text:
            raise ValueError(f"{VARIABLE} is not set. Set it to the environment as JSON, with at least its id.")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ValueError(f"{VARIABLE} does not fit: {_first_error(error)}") from error

    def to_variable(self) -> str:
        """Return the value of `RLRUN_ENVIRONMENT`. Equal configurations have equal text, so that no pod restarts."""
        return json.dumps(self.to_json_dict(), sort_keys=True)

    @property
    def owner(self) -> str | None:
        """Owner of the package. None for a module that is part of the image."""
        return self.id.split("/")[0] if "/" in self.id else None

    @property
    def package(self) -> str:
        """Name of the package, without owner and version."""
        return self.id.split("/")[-1].split("@")[0]

    @property
    def version(self) -> str | None:
        """Requested version of the package. None for the newest one."""
        return self.id.partition("@")[2] or None

    @property
    def load_args(self) -> dict[str, Any]:
        """Arguments of `load_environment`. Taskset and harness become its argument `config`, as in verifiers' tools.

        Raises ValueError if `args.config` has one of the two as well.
        """
        sections = {key: value for key, value in (("taskset", self.taskset), ("harness", self.harness)) if value}
        if not sections:
            return dict(self.args)
        config = self.args.get("config", {})
        if not isinstance(config, Mapping) or set(config) & set(sections):
            raise ValueError("args.config must be a table without the sections that taskset and harness already set")
        return {**self.args, "config": {**config, **sections}}


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


ROLLOUT_ID_HEADER = "X-Rollout-Id"


class EnvironmentInfo(Schema):
    """What an environment server holds."""

    name: str
    id: str
    version: str | None = None
    ready: bool
    problem: Problem | None = None
    train_examples: int = 0
    eval_examples: int = 0


class Split(StrEnum):
    """Which of an environment's datasets an example comes from."""

    train = "train"
    eval = "eval"


class GroupRequest(Schema):
    """Roll one example out `rollouts` times and score the results together."""

    group_id: str
    example_index: int = Field(ge=0)
    split: Split = Split.train
    rollouts: int = Field(ge=1)
    base_url: str
    """OpenAI base URL: the orchestrator's rollout gateway for this very group."""
    model: str
    sampling: dict[str, Any] = Field(default_factory=dict)
    """OpenAI sampling arguments (temperature, max_tokens, ...)."""
    deadline_seconds: float = Field(gt=0)
    score: bool = True
    """False leaves the rewards at 0 without asking the environment's reward functions."""


class DemonstrationRequest(Schema):
    """What would be the right answer to an example?"""

    example_index: int = Field(ge=0)
    split: Split = Split.train


class Demonstration(Schema):
    """An example's prompt and the answer that its data set gives, as chat messages."""

    prompt: list[dict[str, Any]] = Field(min_length=1)
    completion: list[dict[str, Any]] = Field(min_length=1)


class RolloutResult(Schema):
    """What the environment says of one rollout. Its tokens are not here: the gateway recorded them itself."""

    rollout_id: str
    """What the environment sent as X-Rollout-Id."""
    reward: float
    metrics: dict[str, float] = Field(default_factory=dict)
    stop_condition: str | None = None
    is_truncated: bool = False
    generation_ms: float | None = Field(ge=0, default=None)
    """Milliseconds from the first request to the last answer, tools and waiting included."""
    scoring_ms: float | None = Field(ge=0, default=None)
    """Milliseconds in reward functions; a group's functions count for each of its rollouts."""
    completion: Any = None
    """The conversation as messages, for the rollout log."""
    error: Problem | None = None
    """Set when the rollout or its scoring failed: it is counted and never trained on."""


class GroupResult(Schema):
    """One example's rollouts."""

    group_id: str
    rollouts: list[RolloutResult]
    seconds: float


def timed_out(request: GroupRequest) -> Problem:
    """Return the problem of the rollouts of a group that missed its deadline."""
    return Problem(
        reason=Reason.ENVIRONMENT_TIMEOUT,
        message=f"the group did not end within {request.deadline_seconds:g} s: rollouts or reward functions hang, "
        "or the environment needs a larger compute size",
    )


def failed_rollouts(request: GroupRequest, problem: Problem) -> list[RolloutResult]:
    """Return one failed result per requested rollout. Their ids are new: which rollout sent which request is lost."""
    return [RolloutResult(rollout_id=uuid.uuid4().hex, reward=0.0, error=problem) for _ in range(request.rollouts)]
