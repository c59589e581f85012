"""What an environment server is told: one JSON variable for the environment, a few for its surroundings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError
from rlrun.schema.base import Schema
from rlrun.schema.wire import ENVIRONMENT_PORT

VARIABLE = "RLRUN_ENVIRONMENT"


class EnvironmentSettings(Schema):
    """One environment of a run. What only the orchestrator needs (weight, ...) is ignored."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(pattern=r"^([A-Za-z0-9._-]+/)?[A-Za-z0-9._-]+(@[A-Za-z0-9._+!-]+)?$")
    """`owner/name[@version]`; without an owner the module must be in the image already."""
    name: str = ""
    """The environment's name in the run; the id's name if empty."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of `load_environment`, as they are."""
    taskset: dict[str, Any] | None = None
    harness: dict[str, Any] | None = None
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that run rollouts."""
    packages_url: str | None = None
    """Base URL below which `/environments/{owner}/{name}` gives the wheels."""

    @property
    def owner(self) -> str | None:
        """Before the slash."""
        return self.id.split("/")[0] if "/" in self.id else None

    @property
    def package(self) -> str:
        """Behind the slash, without the version."""
        return self.id.split("/")[-1].split("@")[0]

    @property
    def version(self) -> str | None:
        """Behind the @."""
        return self.id.partition("@")[2] or None

    @property
    def load_args(self) -> dict[str, Any]:
        """Arguments of `load_environment`; taskset and harness go in as its `config`, as verifiers' own tools do it.

        Raises ValueError when `args.config` has one of the two as well.
        """
        sections = {key: value for key, value in (("taskset", self.taskset), ("harness", self.harness)) if value}
        if not sections:
            return dict(self.args)
        config = self.args.get("config", {})
        if not isinstance(config, Mapping) or set(config) & set(sections):
            raise ValueError("args.config must be a table without the sections that taskset and harness give already")
        return {**self.args, "config": {**config, **sections}}


class Surroundings(Schema):
    """Places and deadlines (seconds); each has a variable `RLRUN_ENVIRONMENT_<FIELD>`."""

    port: int = ENVIRONMENT_PORT
    dir: Path = Path("/environment")
    """Where the package is installed; emptied first."""
    package_deadline: float = Field(default=1800.0, gt=0)
    """For the orchestrator to answer with the package."""
    load_deadline: float = Field(default=900.0, gt=0)
    """For `load_environment`."""
    hang_grace: float = Field(default=10.0, ge=0)
    """How long behind a group's deadline a worker may answer before it counts as hung and is killed."""
    termination_log: Path = Path("/dev/termination-log")


def settings_from(environment: Mapping[str, str] = os.environ) -> tuple[EnvironmentSettings, Surroundings]:
    """Raises ValueError that names the variable and the field that do not fit."""
    text = environment.get(VARIABLE)
    if not text:
        raise ValueError(f"{VARIABLE} is not set: give it the environment as JSON, at least its id")
    try:
        settings = EnvironmentSettings.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(f"{VARIABLE} does not fit: {_first(error)}") from error
    prefix = f"{VARIABLE}_"
    given = {
        field: environment[prefix + field.upper()]
        for field in Surroundings.model_fields
        if prefix + field.upper() in environment
    }
    try:
        return settings, Surroundings.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"a variable {prefix}* does not fit: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
