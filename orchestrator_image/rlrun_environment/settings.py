"""Settings of the environment server, read from `RLRUN_ENVIRONMENT` and `RLRUN_ENVIRONMENT_*`."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field
from rlrun.api.base.schema import Schema
from rlrun.constants import ENVIRONMENT_PORT
from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.protocol.environment import VARIABLE, EnvironmentConfig
from rlrun.service.settings import read_settings


class EnvironmentProcessSettings(Schema):
    """Paths and deadlines (seconds) of the process. Each has an environment variable `RLRUN_ENVIRONMENT_<FIELD>`."""

    port: int = ENVIRONMENT_PORT
    dir: Path = Path("/environment")
    """Folder into which the package is installed. It is emptied first."""
    interpreters: Path = Path("/opt/verifiers")
    """Folder with the interpreters of workers (`3.11/v0` to `3.13/v1`). If it does not exist, workers use the
    server's interpreter.
    """
    package_deadline: float = Field(default=1800.0, gt=0)
    """Time to wait for the orchestrator to deliver the package."""
    load_deadline: float = Field(default=900.0, gt=0)
    """Time limit for `load_environment`."""
    hang_grace: float = Field(default=10.0, ge=0)
    """Grace period after a group's deadline. A worker that has not responded at its end is killed."""
    process_limit: int = Field(default=1024, ge=1)
    """Maximum number of processes and threads in the container, per worker."""
    termination_log: Path = Path("/dev/termination-log")
    token: str | None = Field(default=None, repr=False)
    """Token that requests must have, from `RLRUN_TOKEN`. If it is None, all requests are accepted."""


def load_settings(environment: Mapping[str, str] = os.environ) -> tuple[EnvironmentConfig, EnvironmentProcessSettings]:
    """Read all settings. Raises ValueError, whose message names the invalid variable."""
    settings = read_settings(EnvironmentProcessSettings, environment, f"{VARIABLE}_")
    token = environment.get(TOKEN_VARIABLE) or None
    return EnvironmentConfig.from_variables(environment), settings.model_copy(update={"token": token})
