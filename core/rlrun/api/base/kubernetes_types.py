"""Types with the fields of their Kubernetes counterparts: conditions, tolerations, resources, variables."""

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from rlrun.api.base.names import UTC_TIME, ObjectName
from rlrun.api.base.rules import Rule, Spec
from rlrun.api.base.schema import Schema
from rlrun.constants import API_VERSION, ApiVersion

QUANTITY = r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"


def _quantity(value: Any) -> Any:
    # The API server reads 2.0 as an integer.
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if (isinstance(value, int) and not isinstance(value, bool)) or is_whole else value


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
"""Kubernetes quantity: `4`, `500m`, `16Gi`."""


def _utc_time(value: Any) -> Any:
    if isinstance(value, datetime) or (isinstance(value, str) and re.fullmatch(UTC_TIME, value)):
        return value
    raise PydanticCustomError("time", "write a time in UTC as in 2027-01-31T12:00:00Z")


UtcTime = Annotated[
    AwareDatetime,
    Field(strict=False, json_schema_extra={"pattern": UTC_TIME, "maxLength": 32}),
    BeforeValidator(_utc_time),
]
"""UTC time in RFC 3339 format with the suffix Z."""

LabelValue = Annotated[str, Field(max_length=253)]


class ObjectMeta(Schema):
    """Metadata fields of an object that rlrun reads. Other fields are kept unchanged."""

    model_config = ConfigDict(extra="allow")

    name: str = ""
    """Name, unique in its namespace."""
    namespace: str | None = None
    """Namespace of the object."""
    uid: str | None = None
    """UID assigned by the API server."""
    generation: int | None = None
    """Number of spec changes, as counted by the API server."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the object."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the object."""


class Status(Schema):
    """Base class of sections that the operator writes. Unknown fields, from other operator versions, are ignored."""

    model_config = ConfigDict(extra="ignore")


class ConditionStatus(StrEnum):
    """Status of a condition. Unknown means that the status could not be determined."""

    true = "True"
    false = "False"
    unknown = "Unknown"


class Condition(Status):
    """One aspect of an object's state."""

    type: str = Field(min_length=1, max_length=316)
    """Type of the condition in CamelCase."""
    status: ConditionStatus
    """Status of the condition: True, False or Unknown."""
    reason: str = Field(min_length=1, max_length=1024)
    """Reason for the status, as one CamelCase word."""
    message: str = Field(default="", max_length=32768)
    """Explanation of the status, and what to do about it."""
    last_transition_time: datetime
    """Time of the last change of `status`."""
    observed_generation: int = Field(default=0, ge=0)
    """Generation of the object that this condition describes."""


class Resources(Spec):
    """CPU, memory and extended resources of a container."""

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=16)
    """Resources that the scheduler reserves, by name: `cpu: 2`, `memory: 8Gi`."""
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=16)
    """Maximum resources that the container may use, by name."""


class TolerationOperator(StrEnum):
    """Operator that compares a toleration with a taint."""

    exists = "Exists"
    equal = "Equal"


class TaintEffect(StrEnum):
    """Effect of a taint on pods that do not tolerate it."""

    no_schedule = "NoSchedule"
    prefer_no_schedule = "PreferNoSchedule"
    no_execute = "NoExecute"


class Toleration(Spec):
    """Toleration that lets pods run on nodes with a matching taint."""

    key: str | None = Field(default=None, max_length=316)
    """Key of the taint. If unset with operator Exists, every key matches."""
    operator: TolerationOperator = Field(default=TolerationOperator.equal, strict=False)
    """Comparison with the taint: Exists compares only the key, Equal the key and the value."""
    value: str | None = Field(default=None, max_length=253)
    """Value of the taint, used by the operator Equal."""
    effect: TaintEffect | None = Field(default=None, strict=False)
    """Effect of the taint. If unset, every effect matches."""
    toleration_seconds: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seconds to tolerate a NoExecute taint. Unlimited if unset."""


class SecretKeySelector(Spec):
    """Key of a Secret in the pods' namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: str = Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    """Key in the Secret whose value is used."""
    optional: bool = False
    """If true, the variable is left unset when the Secret or the key does not exist."""


class EnvVarSource(Spec):
    """Source of the value of an environment variable."""

    secret_key_ref: SecretKeySelector
    """Key of a Secret in the namespace of the pods, which is the namespace of the run or of the serving pool."""


class EnvVar(Spec):
    """One environment variable of a container."""

    name: str = Field(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the variable."""
    value: str | None = Field(default=None, max_length=4096)
    """Value of the variable, empty if unset. Everyone who can read this object sees it, so put credentials into a Secret and use valueFrom."""  # noqa: E501
    value_from: EnvVarSource | None = None
    """Source of the value, instead of `value`."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "valueFrom",
            "!has(self.valueFrom) || !has(self.value) || self.value == ''",
            "valueFrom cannot be used if value is not empty: remove one of them",
            lambda v: v.value_from is None or not v.value,
        ),
    )


class SecretReference(Spec):
    """Reference to a Secret in the namespace of the run."""

    name: ObjectName
    """Name of the Secret."""
    optional: bool = False
    """If true, the run can start without the Secret."""


class EnvFrom(Spec):
    """Secret whose keys become environment variables."""

    secret_ref: SecretReference
    """Reference to the Secret."""


class KubernetesObject(Spec):
    """Base class of the project's kinds."""

    api_version: ApiVersion = API_VERSION
    kind: str
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: Spec

    @classmethod
    def from_object(cls, obj: dict[str, Any]) -> Self:
        """Parse an object from the API server or a manifest.

        Raises pydantic.ValidationError with all problems.
        """
        return cls.model_validate(obj, by_alias=True, by_name=False)
