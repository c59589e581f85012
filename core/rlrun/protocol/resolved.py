"""Resolved run: the complete configuration of one attempt, written by the operator.

It is JSON in the ConfigMap `<run>-config`, mounted at /etc/rlrun/run.json in the orchestrator, which sends the trainer
the specification of its session over HTTP. Environments receive an `EnvironmentConfig` instead. The variable
`RLRUN_CONFIG` overrides the path.
"""

import os
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from rlrun.api.base.names import Text, Url
from rlrun.api.base.received import InputLimits, parse
from rlrun.api.base.rules import ADMITTED
from rlrun.api.base.schema import Schema
from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import EnvironmentPackage
from rlrun.protocol.shared_pool import pool_trainer_name

CONFIG_PATH = Path("/etc/rlrun/run.json")
CONFIG_KEY = "run.json"
CONFIG_VARIABLE = "RLRUN_CONFIG"


class EnvironmentUse(StrEnum):
    """Purpose of an environment pod: training or evaluation."""

    train = "train"
    eval = "eval"


class AttemptIdentity(Schema):
    """Identity of one attempt of a run."""

    namespace: Text
    name: Text
    uid: Text
    attempt: int = Field(ge=1)


class EnvironmentEndpoint(Schema):
    """Address of one environment pod."""

    name: Text
    """Effective name of the environment in env or eval.env."""
    id: Text
    """Package of the environment, owner/name."""
    url: Url
    """Base URL of the environment server."""
    use: EnvironmentUse


class Endpoints(Schema):
    """Addresses of the run's components."""

    trainer_url: Text
    inference_host: Text
    """Host name of a headless Service, which resolves to the addresses of the inference replicas, including replicas
    that are not ready.
    """
    pool: Text | None = None
    """Name of the shared pool that contains these replicas and possibly the trainer (see `ResolvedRun.trains_in_pool`).
    None if the replicas belong to the run.
    """
    gateway_url: Text
    """Base URL of the rollout gateway for environments."""
    environments: list[EnvironmentEndpoint] = Field(max_length=32)
    """Environments in the order of env, followed by those of eval.env."""


class ArtifactPlaces(Schema):
    """Folders in S3 that the run reads and writes."""

    run_uri: Text
    environments_uri: Text


class ArtifactRef(NamedTuple):
    """Checkpoint to start from."""

    uri: str
    digest: str | None = None
    """SHA-256 of the checkpoint's manifest, which the reader verifies. None disables the verification."""


class ResolvedRun(Schema):
    """Configuration of one attempt of a run, with all defaults."""

    wire_limits = InputLimits(values=400_000)

    run: AttemptIdentity
    spec: RLRunSpec
    model: RLModelSpec
    endpoints: Endpoints
    artifacts: ArtifactPlaces
    warm_start_from: Text | None = None
    """URI of another run's checkpoint to start from, s3://..."""
    warm_start_digest: Text | None = None
    """SHA-256 of the manifest of `warm_start_from`. None in attempts that started before the operator recorded it."""
    environment_packages: list[EnvironmentPackage] = Field(default_factory=list, max_length=32)
    """Packages recorded in the run's status. The environments use exactly these."""

    @property
    def warm_start(self) -> ArtifactRef | None:
        """Checkpoint of another run to start from."""
        return None if self.warm_start_from is None else ArtifactRef(self.warm_start_from, self.warm_start_digest)

    @property
    def trains_in_pool(self) -> bool:
        """True if the run uses the trainer of its shared pool. Attempts that an earlier version of the operator started
        share only engines.
        """
        pool = self.endpoints.pool
        if pool is None or not self.model.trainer.is_shareable:
            return False
        return self.endpoints.trainer_url.startswith(f"http://{pool_trainer_name(pool)}.")

    @property
    def max_tokens(self) -> int:
        """Maximum number of completion tokens per turn."""
        return self.spec.sampling.max_tokens or self.model.max_tokens_of_runs

    @classmethod
    def load(cls, path: Path | None = None) -> "ResolvedRun":
        """Read the mounted file.

        Raises OSError if it cannot be read, InputInvalid if it does not match this version's schema.
        """
        return cls.parse((path or Path(os.environ.get(CONFIG_VARIABLE, CONFIG_PATH))).read_bytes())

    @classmethod
    def parse(cls, data: str | bytes) -> "ResolvedRun":
        """Parse the JSON of an attempt that was accepted when it started.

        The schema's rules are not checked, except those that isolate pods. Raises InputInvalid if the JSON does not
        match this version's schema.
        """
        return parse(cls, data, "The configuration of the run", context=ADMITTED)
