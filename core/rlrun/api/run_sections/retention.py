"""When checkpoints and adapters are written, and how many are kept."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec


class ArtifactPolicy(StrEnum):
    """What becomes of a run's files in S3 when the RLRun is deleted."""

    retain = "Retain"
    delete = "Delete"


class Checkpoints(Spec):
    """Checkpoints: all that is needed to continue a run."""

    interval: int | None = Field(default=None, ge=1, le=1_000_000)
    """Save a checkpoint every N steps; the platform's default when absent. The last step always saves one."""
    keep_cloud: int = Field(default=5, ge=-1, le=10_000)
    """Newest checkpoints to keep in S3, -1 for all."""

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
    """Adapter uploads: the LoRA weights that can be downloaded or deployed."""

    interval: int = Field(default=0, ge=0, le=1_000_000)
    """Upload the adapter every N steps; 0 uploads only the final one, which is always uploaded."""
    keep_last: int = Field(default=3, ge=-1, le=10_000)
    """Newest adapters to keep in S3, -1 for all. A deployed adapter is never removed."""

    mutable: ClassVar[frozenset[str] | None] = frozenset({"keep_last"})
    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "keepLast",
            "self.keepLast != 0",
            "keepLast must be -1 (all) or at least 1",
            lambda a: a.keep_last != 0,
        ),
    )
