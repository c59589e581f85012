"""Records the results and failures of reward functions.

If a reward function raises an error, verifiers silently uses the reward 0.0, which would train the policy on noise.
verifiers also does not expose the functions' weights. Here every reward function of an environment is wrapped, and the
wrapper records failures, values and weights in the rollout's state.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

from rlrun_environment.phases import WorkPhase
from rlrun_environment.worker.user_code.isolation import cancelled_from_outside, record_first_problem, user_code_problem
from rlrun_environment.worker.user_code.progress import in_phase
from rlrun_environment.worker.user_code.sanitize import short_repr, to_finite_float

REWARDS_KEY = "rlrun_rewards"
"""Key in a rollout's state for the value and weight of each reward function."""


def watch_rewards(environment: Any, folder: Path) -> None:
    """Make every rubric of a `verifiers.Environment` record its functions' results and failures in rollouts' states."""
    for rubric in rubrics_of(environment.rubric):
        rubric._call_individual_reward_func = _individual(rubric, rubric._call_individual_reward_func, folder)
        rubric._call_group_reward_func = _group(rubric, rubric._call_group_reward_func, folder)


def rubrics_of(rubric: Any) -> Iterator[Any]:
    """Yield the rubric and all nested rubrics, including those of rubric groups and environment groups."""
    yield rubric
    for inner in getattr(rubric, "rubrics", None) or []:
        yield from rubrics_of(inner)
    environments = getattr(rubric, "env_map", None)
    if isinstance(environments, Mapping):
        for environment in environments.values():
            yield from rubrics_of(environment.rubric)


def _record(rubric: Any, func: Callable[..., Any], state: dict[str, Any], value: float) -> None:
    """Record a value with the function's weight. Functions of weight 0 are metrics, which verifiers records."""
    weight = next((weight for known, weight in zip(rubric.funcs, rubric.weights, strict=False) if known is func), 0.0)
    if not weight:
        return
    rewards = state.setdefault(REWARDS_KEY, {})
    name, number = _name(func), 1
    while name in rewards:
        number += 1
        name = f"{_name(func)}#{number}"
    rewards[name] = {"value": value, "weight": float(weight)}


def _individual(rubric: Any, original: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    async def call(func: Callable[..., Any], state: dict[str, Any]) -> float:
        def check(value: Any) -> float:
            number = to_finite_float(value)
            if number is None:
                record_first_problem(state, _not_finite(func, value))
                return 0.0
            return number

        def fail(error: BaseException) -> float:
            record_first_problem(state, _exception_problem(func, error, folder))
            return 0.0

        result: float = await original(func=_shell(func, check, fail), state=state)
        _record(rubric, func, state, result)
        return result

    return call


def _group(rubric: Any, original: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    async def call(func: Callable[..., Any], states: list[dict[str, Any]]) -> list[float]:
        def check(values: Any) -> list[float]:
            try:
                found = list(values)
            except TypeError:
                found = []
            if len(found) != len(states):
                for state in states:
                    record_first_problem(state, _not_finite(func, values, f"{len(states)} numbers"))
                return [0.0] * len(states)
            for state, value in zip(states, found, strict=True):
                if to_finite_float(value) is None:
                    record_first_problem(state, _not_finite(func, value))
            return [to_finite_float(value) or 0.0 for value in found]

        def fail(error: BaseException) -> list[float]:
            for state in states:
                record_first_problem(state, _exception_problem(func, error, folder))
            return [0.0] * len(states)

        result: list[float] = await original(func=_shell(func, check, fail), states=states)
        for state, value in zip(states, result, strict=True):
            _record(rubric, func, state, value)
        return result

    return call


def _shell(
    func: Callable[..., Any], check: Callable[[Any], Any], fail: Callable[[BaseException], Any]
) -> Callable[..., Any]:
    # `wraps` preserves the signature, from which verifiers determines the arguments.
    @functools.wraps(func)
    async def shell(*args: Any, **kwargs: Any) -> Any:
        try:
            value = func(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
        except GeneratorExit:
            raise
        except BaseException as error:
            if cancelled_from_outside(error):
                raise
            return fail(error)
        return check(value)

    shell.__name__ = _name(func)
    return shell


def _exception_problem(func: Callable[..., Any], error: BaseException, folder: Path) -> Problem:
    what = f"Reward function {_name(func)} raised "
    return in_phase(WorkPhase.score, user_code_problem(Reason.REWARD_FUNCTION_ERROR, what, error, folder))


def _not_finite(func: Callable[..., Any], value: Any, wanted: str = "a finite number") -> Problem:
    message = f"Reward function {_name(func)} returned {short_repr(value)} instead of {wanted}."
    return in_phase(WorkPhase.score, Problem(reason=Reason.REWARD_NOT_FINITE, message=message))


def _name(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__name__", None) or type(func).__name__)
