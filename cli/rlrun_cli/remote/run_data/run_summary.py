"""Pure functions that summarize a run from its RLRun object."""

from dataclasses import dataclass

from rlrun.api.base.phases import Phase
from rlrun.constants import Reason
from rlrun.kube.objects import Obj, max_steps_of
from rlrun.kube.run_phase import explain_phase

from rlrun_cli.terminal.output import duration

FINISHED = frozenset(p.value for p in Phase if p.finished)


@dataclass(frozen=True)
class RunState:
    """State of a run at one point in time."""

    phase: str
    reason: str
    message: str
    step: int
    max_steps: int
    """Maximum number of steps, or 0 if a client's program decides when to stop."""
    reward: float | None
    eta: float | None
    """Estimated time to completion in seconds."""
    restarts: int
    policy_version: int

    @property
    def finished(self) -> bool:
        """True if the run is in a final phase."""
        return self.phase in FINISHED

    @property
    def steps(self) -> str:
        """Text such as `12/100`, or `12` if the number of steps is not known."""
        return f"{self.step}/{self.max_steps}" if self.max_steps else str(self.step)

    @property
    def time_left(self) -> str:
        """Text such as `about 5m left`. Empty if the time is unknown or the run is finished."""
        return "" if self.eta is None or self.finished else f"about {duration(self.eta)} left"


def summarize(run: Obj) -> RunState:
    """Summarize an RLRun object. A run without a status is Pending."""
    status = run.get("status") or {}
    progress = status.get("progress") or {}
    reason, message = explain_phase(status)
    if not status.get("phase") and not reason:
        reason, message = Reason.NOT_SEEN_YET, "the operator has not processed the run yet"
    return RunState(
        phase=status.get("phase") or Phase.pending.value,
        reason=reason,
        message=message,
        step=int(progress.get("step") or 0),
        max_steps=max_steps_of(run),
        reward=progress.get("reward"),
        eta=progress.get("etaSeconds"),
        restarts=int(status.get("restarts") or 0),
        policy_version=int(progress.get("policyVersion") or 0),
    )


BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], width: int = 24) -> str:
    """Return the newest values as block characters, scaled between their minimum and maximum."""
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((v - low) / span * top)] if high > low else BLOCKS[top // 2] for v in shown)
