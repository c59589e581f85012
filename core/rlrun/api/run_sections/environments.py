"""The user's environments: what a policy is trained and evaluated on."""

from typing import Any, ClassVar

from pydantic import Field

from rlrun.api.base.names import EnvironmentId, EnvironmentName, PackageVersion
from rlrun.api.base.rules import Rule, Spec

EFFECTIVE_NAME = "(has({e}.name) ? {e}.name : {e}.id.substring({e}.id.indexOf('/') + 1))"
"""CEL for what an environment is called; the twin of `Environment.effective_name`."""


class Environment(Spec):
    """One use of an environment package."""

    id: EnvironmentId
    """Environment package as owner/name, found in the platform's S3."""
    name: EnvironmentName | None = None
    """What this use is called in metrics and logs, unique in its list; the part of id after the slash when absent."""
    version: PackageVersion | None = None
    """Version of the package; the newest one when absent."""
    args: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Keyword arguments of the package's load_environment(). Never put a credential here: name the variable and use envFrom."""  # noqa: E501
    taskset: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the taskset, for packages that are made of a taskset and a harness."""
    harness: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the harness, for packages that are made of a taskset and a harness."""

    @property
    def effective_name(self) -> str:
        """`name`, or the package's name without its owner."""
        return self.name or self.id.partition("/")[2]


class TrainEnvironment(Environment):
    """One use of an environment package for training."""

    weight: float | None = Field(default=None, gt=0, le=1000)
    """Share of the groups drawn from this environment, relative to the others; all entries have one or none."""


class EvalEnvironment(Environment):
    """One use of an environment package for evaluation."""

    num_examples: int | None = Field(default=None, ge=-1, le=1_000_000)
    """Examples to evaluate here, -1 for all; eval.numExamples when absent."""
    rollouts_per_example: int | None = Field(default=None, ge=1, le=1024)
    """Rollouts of each example here; eval.rolloutsPerExample when absent."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "numExamples",
            "!has(self.numExamples) || self.numExamples != 0",
            "numExamples must be -1 (all) or at least 1",
            lambda e: e.num_examples != 0,
        ),
    )


def unique_names(field: str) -> Rule:
    """The rule that no two entries of the list `field` have the same effective name."""
    e, f = EFFECTIVE_NAME.format(e="e"), EFFECTIVE_NAME.format(e="f")
    return Rule(
        field,
        f"self.{field}.all(e, self.{field}.exists_one(f, {f} == {e}))",
        f"two entries of {field} have the same name: give each its own name",
        lambda s: len({entry.effective_name for entry in getattr(s, field)}) == len(getattr(s, field)),
    )
