"""Current waiting reasons, conditions and warnings of the run."""

from rlrun.protocol.problem import Problem


class StatusConditions:
    """Waiting reasons, conditions and warnings, each set and cleared by the component that observes it."""

    def __init__(self) -> None:
        self._waiting: dict[str, Problem] = {}
        self._conditions: dict[str, Problem] = {}
        self._warnings: dict[str, Problem] = {}

    def set_waiting(self, component: str, problem: Problem | None) -> None:
        """Record that the run waits for `component`. If `problem` is None, the wait has ended."""
        _set(self._waiting, component, problem)

    def set_condition(self, key: str, problem: Problem | None) -> None:
        """Show `problem` as a warning until the key is set again. If `problem` is None, the warning is removed.
        Problems with the same key may have different reasons.
        """
        _set(self._conditions, key, problem)

    def add_warning(self, problem: Problem) -> None:
        """Show a warning. It replaces an earlier warning with the same reason."""
        self._warnings[problem.reason] = problem

    def clear_warning(self, reason: str) -> None:
        """Remove a warning that no longer applies."""
        self._warnings.pop(reason, None)

    @property
    def waiting_for(self) -> Problem | None:
        """Oldest reason for waiting, or None if the run waits for nothing."""
        return next(iter(self._waiting.values()), None)

    @property
    def warnings(self) -> list[Problem]:
        """Warnings and conditions, one per reason. A condition takes precedence."""
        return list((self._warnings | {problem.reason: problem for problem in self._conditions.values()}).values())


def _set(problems: dict[str, Problem], key: str, problem: Problem | None) -> None:
    if problem is None:
        problems.pop(key, None)
    else:
        problems[key] = problem
