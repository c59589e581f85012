"""Test run of one example, up to its first request to the policy, before an environment becomes ready.

Until this request nothing depends on the policy, so a failure would occur in every rollout of the example. Later errors
may be caused by the response, and rewards may call a judge that costs money, so the test run ends at this request.
"""

import asyncio
import logging

from rlrun.constants import Reason
from rlrun.protocol.environment import GroupRequest, GroupResult, Split
from rlrun.service.errors import ProblemError

from rlrun_environment.worker.example_endpoint import SAMPLING, ExampleEndpoint
from rlrun_environment.worker.runner import Runner
from rlrun_environment.worker.user_code.load_error import LoadError
from rlrun_environment.worker.user_code.loaded import Loaded

log = logging.getLogger(__name__)

PLAY_SECONDS = 60.0
"""Seconds to wait for the first request. An environment that takes longer becomes ready with a warning."""
ENDING_SECONDS = 10.0
"""Time for the rollout to end after its first request, so that it can clean up."""


async def play_example(runner: Runner, loaded: Loaded) -> None:
    """Run the first example. Raises LoadError if its rollout fails before its first request to the policy."""
    split = Split.train if loaded.train_examples else Split.eval
    endpoint = ExampleEndpoint(answer=None)
    with endpoint.serving():
        request = GroupRequest(
            group_id="first-example",
            example_index=0,
            split=split,
            rollouts=1,
            base_url=endpoint.base_url,
            model="first-example",
            sampling=dict(SAMPLING),
            deadline_seconds=PLAY_SECONDS + ENDING_SECONDS,
            rollout_seconds=PLAY_SECONDS,
            score=False,
        )
        rollout = asyncio.create_task(runner.run(request))
        first = asyncio.create_task(endpoint.asked.wait())
        wait = PLAY_SECONDS + ENDING_SECONDS
        await asyncio.wait({rollout, first}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({rollout}, timeout=ENDING_SECONDS)
        first.cancel()
        rollout.cancel()
        # User code may ignore the cancellation.
        await asyncio.wait({rollout}, timeout=ENDING_SECONDS)
    if not endpoint.asked.is_set() and rollout.done() and not rollout.cancelled():
        _raise_problem(rollout, split)


def _raise_problem(rollout: asyncio.Task[GroupResult], split: Split) -> None:
    try:
        errors = [result.error for result in rollout.result().rollouts]
    except ProblemError as error:
        errors = [error.problem]
    problem = next((error for error in errors if error is not None), None)
    if problem is None:
        return
    if problem.reason == Reason.ENVIRONMENT_TIMEOUT:
        log.warning("Example 0 of the %s split sent no request to the policy within %.0f s", split, PLAY_SECONDS)
        return
    what = f"the environment loads, but example 0 of its {split} split fails"
    raise LoadError(Reason.ENVIRONMENT_LOAD_FAILED, f"{what}. {problem.message}")
