"""Interval and retention of checkpoints and adapters."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec


class ArtifactPolicy(StrEnum):
    """Handling of a run's files in S3 when the RLRun is deleted."""

    retain = "Retain"
    delete = "Delete"


class Checkpoints(Spec):
    """Interval and retention of checkpoints, from which a run can continue."""

    interval: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of steps between checkpoints. Defaults to the platform's setting. The last step always saves one."""
    keep_cloud: int = Field(default=5, ge=-1, le=10_000)
    """Number of newest checkpoints to keep in S3, -1 for all."""

    mutable: ClassVar[frozenset[str] | None] = frozenset({"keep_cloud"})
    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "keepCloud",
            "self.keepCloud != 0",
            "keepCloud must be -1 (all) or at least 1",
            lambda c: c.keep_cloud != 0,
        ),
    )


class Adapters(Spec):
    """Interval and retention of adapters: LoRA weights that can be downloaded or deployed."""

    interval: int = Field(default=0, ge=0, le=1_000_000)
    """Number of steps between adapter uploads. 0 uploads only the final adapter, which is always uploaded."""
    keep_last: int = Field(default=3, ge=-1, le=10_000)
    """Number of newest adapters to keep in S3, -1 for all. Deployed adapters are always kept."""

    mutable: ClassVar[frozenset[str] | None] = frozenset({"keep_last"})
    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "keepLast",
            "self.keepLast != 0",
            "keepLast must be -1 (all) or at least 1",
            lambda a: a.keep_last != 0,
        ),
    )
