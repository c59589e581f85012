"""What the operator and a serving sidecar say to each other: which adapters to serve, and how that goes.

    serving sidecar :8001  GET /healthz /readyz /metrics
                           GET /adapters                                        -> ServingReport
                           PUT /adapters            ServingOrder                -> ServingReport

An order is always the whole list, so a lost one is made good by the next. The same JSON lies in the pool's ConfigMap
for pods that start.
"""

from enum import StrEnum

from pydantic import Field

from rlrun.api.base.schema import Schema
from rlrun.protocol.problem import Problem

ORDER_KEY = "order.json"
ORDER_DIR = "/etc/rlrun/serving"
CREDENTIALS_DIR = "/etc/rlrun/s3"


class ServedAdapter(Schema):
    """One adapter to serve."""

    name: str = Field(min_length=3)
    """Its model name in the engine: `{base}:{adapter}`."""
    uri: str
    """s3://bucket/... folder of the adapter artifact."""
    step: int = Field(ge=0)
    """Optimizer steps behind it."""


class DesiredAdapters(Schema):
    """Everything that a pool is to serve beside its base model."""

    base: str
    """Model name of the base model."""
    adapters: list[ServedAdapter] = Field(default_factory=list)


class LoadState(StrEnum):
    """How far one replica is with one adapter."""

    loading = "loading"
    loaded = "loaded"
    failed = "failed"
    """Tried again, less and less often."""
    unloading = "unloading"
    """Not wanted any more, and still in the engine."""


class AdapterReport(Schema):
    """One adapter of one replica."""

    name: str
    state: LoadState
    problem: Problem | None = None
    """The last failure to load or to unload it; cleared by the next success."""


class ServingReport(Schema):
    """All adapters that a replica was told of, and those that it has not got rid of yet."""

    order: DesiredAdapters
    """What it was told last."""
    adapters: list[AdapterReport] = Field(default_factory=list)


def served_name(base: str, adapter: str) -> str:
    """The model name of an adapter: base is the id of its model, adapter the name of its RLAdapter."""
    return f"{base}:{adapter}"
