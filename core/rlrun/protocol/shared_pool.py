"""Messages between the operator and the processes of a shared pool, which samples and trains for several runs.

Sidecar of an engine:

    GET /healthz /readyz /metrics
    PUT /pool-order   PoolOrder              -> PoolOrder     with the pool's token
    /adapters...      as in a run's sidecar                   with the token of a run in the order

Trainer:

    GET /healthz /readyz /metrics
    PUT /pool-order       TrainerOrder       -> TrainerSessions     with the pool's token
    /sessions/{uid}...    as in a run's trainer                     with the token of the run with this uid
                          `client_command`, if `driver` is Client

An order (`PoolOrder` or `TrainerOrder`) is the complete list of the pool's runs, so the next order makes up for a lost
one. Pods read the same JSON from the pool's Secret when they start. Requests of other runs are refused.

Orders may arrive late: from a delayed request, from a former leader, or from the Secret, which the kubelet updates
about a minute after the operator does. The recipient uses the `number` of an order to detect and refuse late ones.

The sidecar writes each order, without the grant, to ORDER_FILE in the folder that it shares with the engine, where the
engine's middleware reads it (`rlrun_engine_access`).
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.constants import TRAINER_PORT
from rlrun.protocol.problem import Problem
from rlrun.protocol.storage_access import MAX_GRANT
from rlrun.protocol.trainer import SessionSpec

ORDER_KEY = "pool-order.json"
"""Key, in the pool's Secret, of the `PoolOrder` message for the sidecars."""
TRAINER_ORDER_KEY = "trainer-order.json"
"""Key, in the pool's Secret, of the `TrainerOrder` message for the trainer."""
ORDER_DIR = "/etc/rlrun/pool"
"""Folder in which the Secret or ConfigMap with the `PoolOrder` or `TrainerOrder` is mounted."""
ORDER_FILE = ".pool-order.json"
"""Name of the file with the `PoolOrder` in the folder of adapters, which sidecar and engine share."""
MAX_RUNS = 64
MAX_TRAINER_GRANT = 8192
"""Maximum length of a run's grant for the trainer. The grant names at most one folder in addition to the run's own
folder.
"""
MAX_BATCH_BYTES = 4 * 1024**3
"""Maximum size in bytes of a batch for the trainer of a shared pool."""
MODEL_HEADER = "X-Rlrun-Model"
"""Header of requests to engines that selects the model: the policy's name without the run's uid, or the id of the base
model.
"""
SEQUENCES_HEADER = "X-Rlrun-Sequences"
"""Header of requests to engines with the number of sequences to sample, from 1 to 64. The default is 1."""


def pool_trainer_name(pool: str) -> str:
    """Return the name of the Deployment and the Service of a shared pool's trainer."""
    return f"{pool}-trainer"


def pool_trainer_url(namespace: str, pool: str) -> str:
    """Return the base URL of a shared pool's trainer."""
    return f"http://{pool_trainer_name(pool)}.{namespace}.svc:{TRAINER_PORT}"


def pool_engines_host(namespace: str, pool: str) -> str:
    """Return the host name of a shared pool's engines, which resolves to the address of each pod."""
    return f"{pool}.{namespace}.svc"


class OrderedRun(Schema):
    """Entry of a run in a `PoolOrder` or `TrainerOrder`."""

    uid: str = Field(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z-]+$")
    """Uid of the RLRun. It is the prefix of `engine_name`, and the name of the run's session."""
    token_digest: str = Field(max_length=64, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the run's token in hexadecimal."""


class PooledRun(OrderedRun):
    """Run whose policies the engines serve."""

    policies: Text
    """Folder of the run's policies, s3://bucket/path. The run may load only from this folder and `adapters`."""
    adapters: Text | None = None
    """Folder of the run's adapters if a client's program trains the run. Omitted for other runs, also in JSON, because
    sidecars of older pools do not know the field.
    """
    max_requests: int = Field(ge=1, le=65_536)
    """Maximum number of the run's requests that one engine processes concurrently."""

    @property
    def folders(self) -> list[str]:
        """Folders from which the run may load."""
        return [self.policies] if self.adapters is None else [self.policies, self.adapters]


class PoolOrder(Schema):
    """Complete list of the runs of a shared pool."""

    wire_limits = InputLimits(values=8 * MAX_RUNS)

    base: Text
    """Id of the base model, which every run may sample from."""
    runs: list[PooledRun] = Field(default_factory=list, max_length=MAX_RUNS)
    grant: str = Field(default="", max_length=MAX_GRANT)
    """Signed StorageGrant for reading the policies of all runs."""
    number: int = Field(default=0, ge=0, lt=2**53)
    """Time at which the order was sent, in milliseconds since 1970 by the API server's clock. 0 in the Secret."""

    @property
    def folders(self) -> list[str]:
        """Folders from which the runs may load."""
        return [folder for run in self.runs for folder in run.folders]

    @model_validator(mode="after")
    def _distinct(self) -> "PoolOrder":
        _check_distinct(self.runs)
        return self


class TrainedRun(OrderedRun):
    """Run that the trainer may train."""

    folder: Text
    """Folder of the run's artifacts in S3, s3://bucket/path."""
    keep_policies: int = Field(ge=1, le=65_536)
    """Number of the run's policies that are kept in S3."""
    max_batch_bytes: int = Field(default=MAX_BATCH_BYTES, ge=1, le=MAX_BATCH_BYTES)
    """Maximum size of a batch in bytes. A run that sends a larger batch is evicted from the pool."""
    grant: str = Field(default="", max_length=MAX_TRAINER_GRANT)
    """Signed StorageGrant of the role `trainer` for the run's folder and the checkpoint from which it starts."""
    client: SessionSpec | None = None
    """Specification of the session of a run with `driver: Client`. The trainer opens this session by itself. For other
    runs, which leave the field unset, the orchestrator opens the session.
    """


class TrainerOrder(Schema):
    """Complete list of the runs that the trainer of a shared pool trains."""

    wire_limits = InputLimits(size=2 * 1024**2, values=256 * MAX_RUNS)

    runs: list[TrainedRun] = Field(default_factory=list, max_length=MAX_RUNS)
    number: int = Field(default=0, ge=0, lt=2**53)
    """Time at which the order was sent (see `PoolOrder.number`)."""

    @model_validator(mode="after")
    def _distinct(self) -> "TrainerOrder":
        _check_distinct(self.runs)
        return self


class ClientActivity(Schema):
    """State of the session of a run with `driver: Client`."""

    uid: str = Field(max_length=64)
    is_open: bool
    calls: int = Field(ge=0)
    """Number of the newest completed command."""
    updates: int = Field(ge=0)
    """Number of optimizer steps of this run."""
    saves: int = Field(ge=0)
    """Counter of saved artifacts. A change means that S3 may have new artifacts. A new process starts from a random
    number, because the process before it may have been killed before it reported its last saves.
    """
    silent_seconds: float = Field(ge=0)
    """Seconds since the client's latest request or heartbeat or, if there was none, since a `TrainerOrder` first listed
    the run.
    """
    problem: Problem | None = None
    """Reason why the session cannot be opened, or why uploads do not reach S3. None if there is no problem."""


class TrainerSessions(Schema):
    """Response of a trainer that has applied a `TrainerOrder`."""

    wire_limits = InputLimits(size=2 * 1024**2, values=16 * MAX_RUNS)

    sessions: list[Annotated[str, Field(max_length=64)]] = Field(default_factory=list, max_length=4 * MAX_RUNS)
    """Uids of the runs whose session is open, being opened, or being saved and closed. The trainer may write only to
    the folders of these runs, even after the `TrainerOrder` no longer lists them.
    """
    clients: list[ClientActivity] = Field(default_factory=list, max_length=MAX_RUNS)
    """Sessions of the runs in the `TrainerOrder` with `driver: Client`."""


def _check_distinct(runs: Sequence[OrderedRun]) -> None:
    for name, values in (("uid", [run.uid for run in runs]), ("token_digest", [run.token_digest for run in runs])):
        if len(set(values)) != len(values):
            raise ValueError(f"two runs have the same {name}")


def engine_name(uid: str, policy: str) -> str:
    """Return the name under which the pool's engines serve a run's policy.

    The name contains an underscore to protect the run. In a chat with the base model, vLLM 0.32 applies the adapter
    whose name equals the part of a content part's `type` before the first underscore. A name with an underscore never
    matches, so other runs cannot sample from this run's adapter in this way.
    """
    return f"{uid}_{policy}"


def uid_of(name: str) -> str:
    """Return the uid of the run whose policy the pool's engines serve under this name (see `engine_name`)."""
    return name.partition("_")[0]
