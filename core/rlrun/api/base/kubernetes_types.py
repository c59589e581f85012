"""The shapes that Kubernetes users know from other objects: conditions, tolerations, resources, variables."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from rlrun.api.base.names import ObjectName
from rlrun.api.base.rules import Spec
from rlrun.api.base.schema import Schema
from rlrun.constants import API_VERSION, ApiVersion

QUANTITY = r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"


def _quantity(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    Field(max_length=64, pattern=QUANTITY),
    BeforeValidator(_quantity),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY,
            "maxLength": 64,
        }
    ),
]
"""An amount of a resource: `4`, `500m`, `16Gi`."""

LabelValue = Annotated[str, Field(max_length=253)]


class ObjectMeta(Schema):
    """The part of an object's metadata that the project reads; the rest is kept as it is."""

    model_config = ConfigDict(extra="allow")

    name: str = ""
    """Name, unique in its namespace."""
    namespace: str | None = None
    """Namespace of the object."""
    uid: str | None = None
    """Set by the API server."""
    generation: int | None = None
    """Counts the changes of the spec."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the object."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the object."""


class Status(Schema):
    """A part of an object that the operator writes. Fields of another version of the operator are passed over."""

    model_config = ConfigDict(extra="ignore")


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    true = "True"
    false = "False"
    unknown = "Unknown"


class Condition(Status):
    """One aspect of an object's state, for machines and for people."""

    type: str = Field(min_length=1, max_length=316)
    """What this condition is about, in CamelCase."""
    status: ConditionStatus
    """Whether it holds: True, False or Unknown."""
    reason: str = Field(min_length=1, max_length=1024)
    """Why, as one CamelCase word."""
    message: str = Field(default="", max_length=32768)
    """Why, and what to do about it, for people."""
    last_transition_time: datetime
    """When `status` last changed."""
    observed_generation: int = Field(default=0, ge=0)
    """The object's generation that this condition judges."""


class Resources(Spec):
    """CPU, memory and extended resources of a container."""

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=16)
    """What the scheduler reserves, by resource name: `cpu: 2`, `memory: 8Gi`."""
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=16)
    """What the container may use at most, by resource name."""


class TolerationOperator(StrEnum):
    """How a toleration compares."""

    exists = "Exists"
    equal = "Equal"


class TaintEffect(StrEnum):
    """What a taint does to pods."""

    no_schedule = "NoSchedule"
    prefer_no_schedule = "PreferNoSchedule"
    no_execute = "NoExecute"


class Toleration(Spec):
    """A taint that the pods put up with."""

    key: str | None = Field(default=None, max_length=316)
    """Key of the taint; without it every key matches (with operator Exists)."""
    operator: TolerationOperator = Field(default=TolerationOperator.equal, strict=False)
    """Exists looks at the key alone, Equal at key and value."""
    value: str | None = Field(default=None, max_length=253)
    """Value of the taint, for Equal."""
    effect: TaintEffect | None = Field(default=None, strict=False)
    """Effect of the taint; without it every effect matches."""
    toleration_seconds: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """How long a NoExecute taint is put up with; without it for ever."""


class EnvVar(Spec):
    """One environment variable of a container."""

    name: str = Field(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the variable."""
    value: str = Field(default="", max_length=4096)
    """Its value, as it is."""


class SecretReference(Spec):
    """A Secret in the namespace of the run."""

    name: ObjectName
    """Name of the Secret."""
    optional: bool = False
    """Whether the run may start without it."""


class EnvFrom(Spec):
    """A Secret whose keys become environment variables."""

    secret_ref: SecretReference
    """The Secret."""


class KubernetesObject(Spec):
    """What the kinds of the project have in common."""

    api_version: ApiVersion = API_VERSION
    kind: str
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: Spec

    @classmethod
    def from_object(cls, obj: dict[str, Any]) -> Self:
        """The typed object for what the API server or a manifest holds.

        Raises pydantic.ValidationError with all problems.
        """
        return cls.model_validate(obj, by_alias=True, by_name=False)
