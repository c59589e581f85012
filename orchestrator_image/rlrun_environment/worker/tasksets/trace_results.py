"""Rollout results from traces of verifiers.v1, one for each trained agent of an episode."""

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.constants import Reason
from rlrun.protocol.environment import RolloutResult
from rlrun.protocol.problem import Problem
from verifiers.v1.dialects.chat import message_to_wire

from rlrun_environment.phases import WorkPhase
from rlrun_environment.worker.tasksets.rollout_endpoints import asks_gateway
from rlrun_environment.worker.user_code import sanitize
from rlrun_environment.worker.user_code.progress import in_phase
from rlrun_environment.worker.user_code.tracebacks import user_line_in

MAX_MESSAGE = 600
EPISODE_PHASES = {"setup": WorkPhase.prepare, "run": WorkPhase.rollout, "finalize": WorkPhase.score}
"""Phases by method of a verifiers.v1 environment. `finalize` compares the agents' traces and rewards them."""


def episode_results(
    traces: Sequence[Any], episode: str, folder: Path, problem: Problem | None = None, *, score: bool = True
) -> list[RolloutResult]:
    """Return the results of an episode's trained agents. Agents with neither a turn nor a problem are left out, unless
    no other agent is left.

    `problem` is the reason why the whole episode failed; an agent's own earlier failure takes precedence. An episode in
    which no trained agent started has one failed result.
    """
    trained = [trace for trace in traces if trace.agent.trainable and asks_gateway(trace.agent.config.client)]
    if not trained:
        problem = problem or Problem(
            reason=Reason.ROLLOUT_FAILED,
            message="no agent of the episode is trained: each is marked as not trainable or has its own client; make "
            "an agent trainable, without its own client",
        )
        return [RolloutResult(rollout_id=uuid.uuid4().hex, episode=episode, reward=0.0, error=problem)]
    problems = {trace.id: _problem_of(trace, problem, folder) for trace in trained}
    # An agent that never had a turn, for example because another one lost first, has no tokens to train on.
    active = [trace for trace in trained if trace.num_turns or problems[trace.id] is not None] or trained
    limit = sanitize.MAX_COMPLETION // len(active)
    return [_result(trace, episode, problems[trace.id], score, limit) for trace in active]


def episode_problem(episode: Any, folder: Path) -> Problem | None:
    """Return the problem if the episode failed as a whole, or None. Individual agents may have failed even then."""
    if episode.ok or not episode.errors:
        return None
    # verifiers prefixes its message with the environment's method that failed.
    method = episode.errors[-1].message.partition("()")[0].rpartition(".")[2]
    phase = EPISODE_PHASES.get(method, WorkPhase.rollout)
    return in_phase(phase, _problem(Reason.ROLLOUT_FAILED, episode.errors[-1], folder))


def _result(trace: Any, episode: str, problem: Problem | None, score: bool, limit: int) -> RolloutResult:
    prompt, completion = _messages(trace)
    given = {name: reward for name, reward in trace.rewards.items() if reward is not None} if score else {}
    reward = sanitize.to_finite_float(trace.reward) if score else 0.0
    return RolloutResult(
        rollout_id=trace.id,
        agent=sanitize.truncate_text(trace.agent.name, sanitize.MAX_NAME),
        episode=episode,
        reward=reward if reward is not None else 0.0,
        rewards=sanitize.rewards(
            {name: {"value": entry.score, "weight": entry.weight} for name, entry in given.items() if entry.weight}
        ),
        metrics=sanitize.metrics({**{name: entry.score for name, entry in given.items()}, **trace.metrics}),
        stop_condition=sanitize.truncate_text(trace.stop_condition, sanitize.MAX_NAME)
        if trace.stop_condition
        else None,
        is_truncated=bool(trace.is_truncated),
        generation_ms=_milliseconds(trace.timing.agent),
        scoring_ms=_milliseconds(trace.timing.scoring),
        prompt=sanitize.completion(prompt, limit),
        completion=sanitize.completion(completion, limit),
        error=problem or _not_finite(given),
    )


def _messages(trace: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages before the first one that the policy sampled, and the remaining messages."""
    branches = trace.branches
    nodes = branches[-1].nodes if branches else []
    first = next((number for number, node in enumerate(nodes) if node.sampled), len(nodes))
    messages = [message_to_wire(node.message) for node in nodes]
    return messages[:first], messages[first:]


def _problem_of(trace: Any, of_episode: Problem | None, folder: Path) -> Problem | None:
    """Return the problem of an agent's rollout: its own error, or else the problem of its episode."""
    phase = _phase(trace)
    if not trace.ok and trace.errors:
        reason = Reason.REWARD_FUNCTION_ERROR if phase is WorkPhase.score else Reason.ROLLOUT_FAILED
        return in_phase(phase, _problem(reason, trace.errors[-1], folder))
    if of_episode is not None:
        return of_episode
    if not trace.ok:
        return in_phase(phase, Problem(reason=Reason.ROLLOUT_FAILED, message="the rollout did not end"))
    return None


def last_phase(traces: Sequence[Any]) -> WorkPhase:
    """Return the phase of the agent that started last in an episode, or `prepare` if none started."""
    return _phase(traces[-1]) if traces else WorkPhase.prepare


def _phase(trace: Any) -> WorkPhase:
    """Return the last phase that an agent's rollout entered."""
    if trace.timing.scoring.start:
        return WorkPhase.score
    return WorkPhase.rollout if trace.timing.agent.start else WorkPhase.prepare


def _problem(reason: str, error: Any, folder: Path) -> Problem:
    text = sanitize.ends_of(f"{error.type}: {error.message}", MAX_MESSAGE)
    where = user_line_in(error.traceback or "", folder)
    return Problem(reason=reason, message=f"{text} (at {where})" if where else text)


def _not_finite(rewards: Mapping[str, Any]) -> Problem | None:
    for name, entry in rewards.items():
        if sanitize.to_finite_float(entry.value) is None:
            shown = sanitize.short_repr(entry.score)
            message = f"The reward {name} is {shown} instead of a finite number."
            problem = Problem(reason=Reason.REWARD_NOT_FINITE, message=sanitize.truncate_text(message, MAX_MESSAGE))
            return in_phase(WorkPhase.score, problem)
    return None


def _milliseconds(span: Any) -> float | None:
    return 1000.0 * (span.end - span.start) if 0.0 < span.start <= span.end else None
