"""What follows when a part of a run fails: ordered rules, the first match decides."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.schema.rules import Rule, Spec


class Role(StrEnum):
    """The parts of a run, as in the label `rlrun.dev/role`."""

    trainer = "trainer"
    inference = "inference"
    environment = "environment"
    orchestrator = "orchestrator"


class FailureAction(StrEnum):
    """What to do about a failure."""

    fail = "Fail"
    restart_component = "RestartComponent"
    restart_run = "RestartRun"
    restart_run_ignore_max = "RestartRunIgnoreMax"


class FailureRule(Spec):
    """An action and the failures it answers; what is left out matches everything."""

    action: FailureAction = Field(strict=False)
    """Fail ends the run; RestartComponent restarts the failed part alone and counts toward maxRestarts; RestartRun starts a new attempt from the newest checkpoint unless there were maxRestarts before; RestartRunIgnoreMax always starts one."""  # noqa: E501
    components: list[Annotated[Role, Field(strict=False)]] = Field(default_factory=list, max_length=4)
    """Parts of the run this rule is about; all when empty."""
    exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(default_factory=list, max_length=32)
    """Exit codes this rule is about; all when empty."""
    reasons: list[Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z]+$")]] = Field(
        default_factory=list, max_length=32
    )
    """Reasons this rule is about, as pods report them (OOMKilled, Evicted, DisruptionTarget); all when empty."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "exitCodes",
            "self.exitCodes.size() == 0 || self.reasons.size() == 0",
            "exitCodes and reasons exclude one another: write two rules",
            lambda r: not (r.exit_codes and r.reasons),
        ),
    )


class FailurePolicy(Spec):
    """Ordered rules for failures; what no rule matches restarts the failed part alone."""

    rules: list[FailureRule] = Field(default_factory=list, max_length=16)
    """The rules, first match decides."""
