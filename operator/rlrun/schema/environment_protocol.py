"""Configuration of environment servers, and results of groups that ended without an answer.

The operator writes `EnvironmentConfig` as JSON into the variable `RLRUN_ENVIRONMENT` of an environment's pod. The
environment server and its workers read it there.
"""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from rlrun.schema.base import Schema
from rlrun.schema.wire import GroupRequest, Problem, RolloutResult

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


def timed_out(request: GroupRequest) -> Problem:
    """Return the problem of the rollouts of a group that missed its deadline."""
    return Problem(
        reason="EnvironmentTimeout",
        message=f"the group did not end within {request.deadline_seconds:g} s: rollouts or reward functions hang, "
        "or the environment needs a larger compute size",
    )


def failed_rollouts(request: GroupRequest, problem: Problem) -> list[RolloutResult]:
    """Return one failed result per requested rollout. Their ids are new: which rollout sent which request is lost."""
    return [RolloutResult(rollout_id=uuid.uuid4().hex, reward=0.0, error=problem) for _ in range(request.rollouts)]


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
