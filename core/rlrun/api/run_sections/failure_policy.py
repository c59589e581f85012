"""Failure policy of a run: an ordered list of rules, as in JobSet. The first matching rule decides."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.api.base.patterns import Pattern
from rlrun.api.base.rules import Rule, Spec
from rlrun.constants import Role

YEAR = 365 * 24 * 3600
TRANSIENT_SECONDS = 10
"""Minimum startup deadline in seconds. The kubelet's next retry often resolves its first error."""


class FailureAction(StrEnum):
    """Action after a failure."""

    fail = "Fail"
    restart_run = "RestartRun"
    restart_run_ignore_max = "RestartRunIgnoreMax"
    restart_role = "RestartRole"
    restart_role_ignore_max = "RestartRoleIgnoreMax"


class FailureRule(Spec):
    """Action, and criteria for the failures that the action applies to. An empty or unset criterion matches every
    failure.
    """

    action: FailureAction = Field(strict=False)
    """Action: Fail ends the run, RestartRun starts a new attempt from the newest checkpoint, RestartRole restarts only the failed component. Restarts count toward maxRestarts, except with RestartRunIgnoreMax and RestartRoleIgnoreMax."""  # noqa: E501
    roles: list[Annotated[Role, Field(strict=False)]] = Field(default_factory=list, max_length=4)
    """Roles that the rule applies to: trainer, inference, environment, orchestrator. If empty, the rule applies to all roles."""  # noqa: E501
    exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(default_factory=list, max_length=32)
    """Exit codes that the rule applies to. If empty, the rule applies to all exit codes."""
    reasons: list[Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z]+$")]] = Field(
        default_factory=list, max_length=32
    )
    """Reasons that the rule applies to, from pods (OOMKilled, Evicted, Error) or from the run's conditions (TrainerOutOfMemory). If empty, the rule applies to all reasons."""  # noqa: E501
    message_pattern: Pattern | None = None
    """Regular expression (RE2) that must match a part of the container's termination message or of the failure message in the run's status. If unset, every message matches."""  # noqa: E501

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "exitCodes",
            "!has(self.exitCodes) || self.exitCodes.size() == 0 || !has(self.reasons) || self.reasons.size() == 0",
            "exitCodes and reasons are mutually exclusive: write two rules",
            lambda r: not (r.exit_codes and r.reasons),
        ),
    )


StartupDeadline = Annotated[int, Field(ge=TRANSIENT_SECONDS, le=YEAR)]


class FailurePolicy(Spec):
    """Rules that select the action after a failure, and deadlines for pods that cannot start. A failure that matches no
    rule restarts only the failed component. Preemption, eviction and deletion of pods are not failures: rules do not
    apply to them, and they do not count toward maxRestarts. The eviction of a pod that exceeded its own
    ephemeral-storage limit is a failure with the reason Evicted.
    """

    rules: list[FailureRule] = Field(default_factory=list, max_length=16)
    """Rules in order. The first matching rule decides."""
    image_pull_deadline_seconds: StartupDeadline | None = None
    """Seconds for which image pulls of a pod may keep failing before the run fails. If unset, only the other deadlines apply."""  # noqa: E501
    config_error_deadline_seconds: StartupDeadline | None = None
    """Seconds for which the creation of a container may keep failing, for example because a Secret is missing, before the run fails. If unset, only the other deadlines apply."""  # noqa: E501
    unschedulable_deadline_seconds: StartupDeadline | None = None
    """Seconds for which a pod may stay unschedulable before the run fails. If unset, only the other deadlines apply."""
