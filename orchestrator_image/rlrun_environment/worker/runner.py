"""Interface of the runners, one for each form of environment."""

from typing import Protocol

from rlrun.protocol.environment import Demonstration, DemonstrationRequest, GroupRequest, GroupResult


class Runner(Protocol):
    """Runs rollouts of one loaded environment."""

    rollouts_at_once: int | None
    """Maximum number of concurrent rollouts. None means no limit."""

    async def run(self, request: GroupRequest, /) -> GroupResult:
        """Run one group. Failures are returned as part of its rollouts. Raises ProblemError if the example does not
        exist.
        """

    async def demonstrate(self, request: DemonstrationRequest, /) -> Demonstration:
        """Return an example's prompt and answer. Raises ProblemError."""

    async def check_example(self) -> None:
        """Prepare the first example as a rollout would. Raises LoadError if the example cannot be run."""

    async def close(self) -> None:
        """Release connections and stop servers."""
