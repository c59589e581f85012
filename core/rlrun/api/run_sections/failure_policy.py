"""What follows when a part of a run fails: ordered rules in JobSet's vocabulary, the first match decides."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.api.base.patterns import Pattern
from rlrun.api.base.rules import Rule, Spec
from rlrun.constants import Role

YEAR = 365 * 24 * 3600
TRANSIENT_SECONDS = 10
"""A kubelet's first error is often gone at its next try: no pod is given up earlier than this."""


class FailureAction(StrEnum):
    """What to do about a failure."""

    fail = "Fail"
    restart_run = "RestartRun"
    restart_run_ignore_max = "RestartRunIgnoreMax"
    restart_role = "RestartRole"
    restart_role_ignore_max = "RestartRoleIgnoreMax"


class FailureRule(Spec):
    """An action and the failures it answers; what is left out matches everything."""

    action: FailureAction = Field(strict=False)
    """Fail ends the run; RestartRun starts a new attempt from the newest checkpoint; RestartRole restarts the failed part alone. Both count toward maxRestarts, RestartRunIgnoreMax and RestartRoleIgnoreMax do not."""  # noqa: E501
    roles: list[Annotated[Role, Field(strict=False)]] = Field(default_factory=list, max_length=4)
    """Parts of the run this rule is about: trainer, inference, environment, orchestrator; all when empty."""
    exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(default_factory=list, max_length=32)
    """Exit codes this rule is about; all when empty."""
    reasons: list[Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z]+$")]] = Field(
        default_factory=list, max_length=32
    )
    """Reasons this rule is about, as pods (OOMKilled, Error) or the run's conditions (TrainerOutOfMemory) report them; all when empty."""  # noqa: E501
    message_pattern: Pattern | None = None
    """Regular expression (RE2) that must match somewhere in the container's termination message or in what the run reports of the failure; any message when absent."""  # noqa: E501

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "exitCodes",
            "self.exitCodes.size() == 0 || self.reasons.size() == 0",
            "exitCodes and reasons exclude one another: write two rules",
            lambda r: not (r.exit_codes and r.reasons),
        ),
    )


Patience = Annotated[int, Field(ge=TRANSIENT_SECONDS, le=YEAR)]


class FailurePolicy(Spec):
    """Ordered rules for failures, and how long to wait for pods that cannot start.

    What no rule matches restarts the failed part alone. Preemption, eviction and deletion are nobody's failure: no rule
    sees them and they count toward nothing.
    """

    rules: list[FailureRule] = Field(default_factory=list, max_length=16)
    """The rules, first match decides."""
    image_pull_deadline_seconds: Patience | None = None
    """Fail the run when the image of one of its pods could not be pulled for this long; when absent it waits, at most until another deadline passes."""  # noqa: E501
    config_error_deadline_seconds: Patience | None = None
    """Fail the run when a container of it could not be made for this long, as with a Secret that is not there; when absent it waits, at most until another deadline passes."""  # noqa: E501
    unschedulable_deadline_seconds: Patience | None = None
    """Fail the run when no node could take one of its pods for this long; when absent it waits, at most until another deadline passes."""  # noqa: E501
