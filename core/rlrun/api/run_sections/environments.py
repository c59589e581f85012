"""Environments that a policy is trained and evaluated on."""

import re
from typing import Any, ClassVar

from pydantic import Field, model_validator

from rlrun.api.base.names import (
    ENVIRONMENT_REFERENCE,
    MAX_ENVIRONMENT_ID,
    NEWEST_VERSION,
    EgressHost,
    EnvironmentName,
    EnvironmentReference,
    PackageDigest,
    PackageVersion,
    package_id,
    split_version,
)
from rlrun.api.base.rules import LIST_TYPE, Rule, Spec
from rlrun.api.run_sections.rollouts import SamplingOverrides, TrainSampling

EFFECTIVE_NAME = (
    "(has({e}.name) ? {e}.name : {e}.id.substring({e}.id.indexOf('/') + 1).replace('==', '@').split('@')[0])"
)
"""CEL expression for an environment's name, equivalent to `Environment.effective_name`."""

DEFAULT_ROLLOUT_TIMEOUT = 1620
"""Default timeout of a rollout in seconds. Scoring may take a ninth of it, so a group of rollouts has half an hour."""


def _version_rule(field: str, other: str) -> Rule:
    """Return a rule that forbids different versions in `id` and `version`. Violations are reported at `field`."""
    return Rule(
        field,
        "!has(self.version) || !(self.id.contains('@') || self.id.contains('=='))"
        " || self.id.endsWith('@' + self.version) || self.id.endsWith('==' + self.version)",
        f"{field} and {other} name different versions: remove one of them",
        # `_move_version` has removed the version from a valid id, unless `version` differs.
        lambda e: e.version is None or split_version(e.id)[0] == e.id,
    )


class Environment(Spec):
    """Environment of a run: a package and its arguments."""

    id: EnvironmentReference
    """Environment package in the platform's S3, as owner/name, owner/name@version or owner/name==version. Names that differ only in case or in -, _ and . are the same package."""  # noqa: E501
    name: EnvironmentName | None = None
    """Name of the environment in metrics and logs, unique in its list. Defaults to the part of id after the slash."""
    version: PackageVersion | None = None
    """Version of the package, set here or at the end of id. Compared as in PEP 440, so 1.0 equals 1.0.0. Defaults to
    the newest version.
    """
    digest: PackageDigest | None = None
    """Required digest of the package, as shown in status.environments. A run whose package has a different digest fails with EnvironmentDigestMismatch. If unset, the digest is not checked."""  # noqa: E501
    args: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Keyword arguments of the package's load_environment(). For a package that exports a taskset of verifiers.v1, the keys are fields of its environment, names of its agents, and select, which selects tasks. At most 127 KiB as JSON, together with taskset and harness. Do not put credentials here; pass them as variables with envFrom."""  # noqa: E501
    taskset: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the taskset, used by packages that export one. Unknown settings are refused when the environment loads."""  # noqa: E501
    harness: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the harness that all agents use, for packages that export a taskset: the id of the harness, for example null or bash, settings of this harness, and settings of the agents, such as max_turns. Unknown settings are refused when the environment loads."""  # noqa: E501
    rollout_timeout_seconds: int = Field(default=DEFAULT_ROLLOUT_TIMEOUT, ge=1, le=604_800)
    """Maximum seconds for one rollout with all its turns and tools. A rollout that takes longer fails and is not trained on. The time starts when a worker of the pod starts the rollout. Scoring a group of rollouts may take another ninth of this time."""  # noqa: E501

    egress: list[EgressHost] = Field(default_factory=list, max_length=32, json_schema_extra={LIST_TYPE: "set"})
    """Hosts outside the cluster that the environment connects to over TLS, for example a judge: api.example.com, api.example.com:8443 or *.example.com. The platform must allow them. The environment's code can reach only these hosts, through the proxy in HTTPS_PROXY."""  # noqa: E501

    replicas: int = Field(default=1, ge=1, le=64)
    """Number of pods. infrastructure.computeSize determines the number of workers per pod. A new group of rollouts goes to the pod with the fewest groups in progress. If a pod is lost, only its groups are lost, and their examples are sampled again."""  # noqa: E501
    max_concurrent: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum number of rollouts in progress at a time, summed over all pods of the environment, for example to protect a service that the pods share. At the limit, new rollouts come from other environments. If unset, only the limits of the run apply."""  # noqa: E501

    spec_rules: ClassVar[tuple[Rule, ...]] = (_version_rule("id", "version"), _version_rule("version", "id"))

    @model_validator(mode="before")
    @classmethod
    def _move_version(cls, data: Any) -> Any:
        """Move the version from the end of a valid `id` to `version`, unless `version` differs."""
        identifier = data.get("id") if isinstance(data, dict) else None
        if not isinstance(identifier, str) or len(identifier) > MAX_ENVIRONMENT_ID:
            return data
        if data.get("version") == NEWEST_VERSION:
            data = {key: value for key, value in data.items() if key != "version"}
        package, version = split_version(identifier)
        valid = re.fullmatch(ENVIRONMENT_REFERENCE, identifier)
        if package == identifier or not valid or data.get("version") not in (None, version):
            return data
        return {**data, "id": package} | ({"version": version} if version else {})

    @property
    def effective_name(self) -> str:
        """Name of the environment: `name`, or the package's name without its owner."""
        return self.name or self.id.partition("/")[2]

    @property
    def package_id(self) -> str:
        """Id of the package with its normalized name, under which the package is stored."""
        return package_id(self.id)


class TrainEnvironment(Environment):
    """Environment to train on."""

    weight: float | None = Field(default=None, gt=0, le=1000)
    """Relative share of the groups from this environment. Set it for all environments or for none."""
    sampling: TrainSampling | None = None
    """Sampling parameters for this environment's rollouts, demonstrations and validation. Unset parameters default to the run's sampling section. The trainer computes probabilities under the same parameters."""  # noqa: E501


class EvalEnvironment(Environment):
    """Environment to evaluate on."""

    num_examples: int | None = Field(default=None, ge=-1, le=1_000_000)
    """Number of examples to evaluate, -1 for all. Defaults to eval.numExamples."""
    rollouts_per_example: int | None = Field(default=None, ge=1, le=1024)
    """Number of rollouts per example. Defaults to eval.rolloutsPerExample."""
    sampling: SamplingOverrides | None = None
    """Sampling parameters for this environment. Unset parameters default to eval.sampling."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        *Environment.spec_rules,
        Rule(
            "numExamples",
            "!has(self.numExamples) || self.numExamples != 0",
            "numExamples must be -1 (all) or at least 1",
            lambda e: e.num_examples != 0,
        ),
    )


def unique_names(field: str) -> Rule:
    """Return a rule that requires unique effective names in the list `field`."""
    e, f = EFFECTIVE_NAME.format(e="e"), EFFECTIVE_NAME.format(e="f")
    return Rule(
        field,
        f"self.{field}.all(e, self.{field}.exists_one(f, {f} == {e}))",
        f"two entries of {field} have the same name: set a unique name for each",
        lambda s: len({entry.effective_name for entry in getattr(s, field)}) == len(getattr(s, field)),
    )
