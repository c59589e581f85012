"""Messages between the operator and the sidecars of a serving pool: desired adapters and their state.

    GET /healthz /readyz /metrics
    GET /adapters                     -> ServingReport
    PUT /adapters   DesiredAdapters   -> ServingReport

Each message contains the complete list of desired adapters, so the next message makes up for a lost one. Pods read the
same JSON from the pool's ConfigMap when they start.
"""

from enum import StrEnum

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.protocol.problem import Problem
from rlrun.protocol.storage_access import MAX_FOLDERS, MAX_GRANT

ORDER_KEY = "order.json"
MAX_SERVED = MAX_FOLDERS
"""Maximum number of adapters in a pool. The pool's grant lists one folder per adapter."""
ORDER_DIR = "/etc/rlrun/serving"


class ServedAdapter(Schema):
    """Adapter that a serving pool should serve."""

    name: str = Field(min_length=3, max_length=1024)
    """Model name in the engine: `{base}:{adapter}`."""
    uri: Text
    """Folder of the adapter in S3, s3://bucket/path."""
    step: int = Field(ge=0)
    """Number of optimizer steps that the adapter includes. For a run with `driver: Client`, the number of the call that
    saved the adapter.
    """
    digest: Text | None = None
    """SHA-256 of the adapter's manifest, which the sidecar verifies. None disables the verification, for adapters that
    became Ready in an earlier version.
    """


class DesiredAdapters(Schema):
    """Complete list of adapters that a pool serves in addition to its base model."""

    wire_limits = InputLimits(values=5 * MAX_SERVED)

    base: Text
    """Model name of the base model."""
    adapters: list[ServedAdapter] = Field(default_factory=list, max_length=MAX_SERVED)
    grant: str = Field(default="", max_length=MAX_GRANT)
    """Signed StorageGrant for reading the adapters."""


class LoadState(StrEnum):
    """State of one adapter on one replica."""

    loading = "loading"
    loaded = "loaded"
    failed = "failed"
    """Loading the adapter failed. The sidecar retries with back-off."""
    unloading = "unloading"
    """The engine still serves the adapter, but the operator no longer lists it."""


class AdapterReport(Schema):
    """Report on one adapter on one replica: its state, and its problem if there is one."""

    name: Text
    state: LoadState
    problem: Problem | None = None
    """Latest failure to load or unload the adapter, cleared by the next success."""


class ServingReport(Schema):
    """State of all adapters of a replica, including adapters that are not unloaded yet."""

    wire_limits = InputLimits(values=12 * MAX_SERVED)

    order: DesiredAdapters
    """Latest desired adapters that the replica received."""
    adapters: list[AdapterReport] = Field(default_factory=list, max_length=MAX_SERVED)


def served_name(base: str, adapter: str) -> str:
    """Return the model name of an adapter from the id of its base model and the name of its RLAdapter."""
    return f"{base}:{adapter}"
