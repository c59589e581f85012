"""The resolved run: everything the processes of one attempt need to know, decided once by the operator.

It is JSON in the ConfigMap `<run>-config`, mounted at /etc/rlrun/run.json in the orchestrator, which hands the other
processes their part over HTTP. `RLRUN_CONFIG` names another path.
"""

import os
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from rlrun.api.base.schema import Schema
from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec

CONFIG_PATH = Path("/etc/rlrun/run.json")
CONFIG_KEY = "run.json"
CONFIG_VARIABLE = "RLRUN_CONFIG"


class EnvironmentUse(StrEnum):
    """What an environment pod is for."""

    train = "train"
    eval = "eval"


class AttemptIdentity(Schema):
    """Which run, and which attempt at it."""

    namespace: str
    name: str
    uid: str
    attempt: int = Field(ge=1)


class EnvironmentEndpoint(Schema):
    """Where one environment pod is reached."""

    name: str
    """Effective name of the entry of env or eval.env."""
    id: str
    """owner/name of its package."""
    url: str
    """Base URL of its server."""
    use: EnvironmentUse


class Endpoints(Schema):
    """Where the parts of the run are reached."""

    trainer_url: str
    inference_host: str
    """Headless Service: every address it resolves to is one ready replica."""
    gateway_url: str
    """The rollout gateway, as environments reach it."""
    environments: list[EnvironmentEndpoint]
    """In the order of env, then of eval.env."""


class ArtifactPlaces(Schema):
    """Where the run reads and writes in S3."""

    run_uri: str
    environments_uri: str


class ResolvedRun(Schema):
    """One attempt at a run, with every default filled in."""

    run: AttemptIdentity
    spec: RLRunSpec
    model: RLModelSpec
    endpoints: Endpoints
    artifacts: ArtifactPlaces
    warm_start_from: str | None = None
    """s3:// uri of another run's checkpoint to start from."""

    @classmethod
    def load(cls, path: Path | None = None) -> "ResolvedRun":
        """Read the mounted file.

        Raises OSError when there is none, pydantic.ValidationError when it does not fit this version's schema.
        """
        return cls.model_validate_json((path or Path(os.environ.get(CONFIG_VARIABLE, CONFIG_PATH))).read_bytes())
