"""The status while it is being written: conditions that keep their transition times, and one clock for all."""

from datetime import UTC, datetime
from typing import Any

from rlrun.kube.conditions import find_condition, shorten
from rlrun.schema.kube import Condition, ConditionStatus
from rlrun.schema.run_status import RLRunStatus
from rlrun.schema.wire import Problem

CONDITION_ORDER = (
    "Validated",
    "TrainerReady",
    "InferenceReady",
    "EnvironmentsReady",
    "OrchestratorReady",
    "Running",
    "RewardFunctionsHealthy",
    "TrainingHealthy",
    "Warnings",
    "ArtifactsListed",
    "ArtifactsCleanedUp",
    "Completed",
    "Failed",
)


class Draft:
    """A copy of a run's status with the changes of one reconcile."""

    def __init__(self, raw: dict[str, Any] | None, generation: int, now: datetime) -> None:
        self.now = now.astimezone(UTC).replace(microsecond=0)
        self.generation = generation
        self.old = RLRunStatus.parse(raw)
        self.status = self.old.model_copy(deep=True)
        self.status.observed_generation = generation

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, if there is one."""
        return find_condition(self.status, kind)

    def holds(self, kind: str) -> bool:
        """Whether the condition is there and True."""
        found = self.condition(kind)
        return found is not None and found.status is ConditionStatus.true

    def set(self, kind: str, value: bool | None, reason: str, message: str = "") -> None:
        """Sets a condition; its transition time moves only when its status does. None is Unknown."""
        status = {True: ConditionStatus.true, False: ConditionStatus.false, None: ConditionStatus.unknown}[value]
        old = self.condition(kind)
        since = old.last_transition_time if old is not None and old.status is status else self.now
        new = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=shorten(message),
            last_transition_time=since,
            observed_generation=self.generation,
        )
        others = [c for c in self.status.conditions if c.type != kind]
        rank = {k: i for i, k in enumerate(CONDITION_ORDER)}
        self.status.conditions = sorted([*others, new], key=lambda c: (rank.get(c.type, len(rank)), c.type))

    def since(self, kind: str) -> datetime | None:
        """When the condition became what it is."""
        found = self.condition(kind)
        return found.last_transition_time if found is not None else None

    def explain(self, problem: Problem | None) -> None:
        """Why the run is in its phase."""
        self.status.reason = problem.reason if problem else None
        self.status.message = shorten(problem.message) if problem and problem.message else None
