"""Making failed rewards visible.

verifiers turns a reward function that raises into a silent 0.0, which trains the policy on noise. Here every rubric of
an environment hands its functions out in a shell that remembers what went wrong on the rollout's own state.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.schema.wire import Problem

from rlrun_orchestrator.environment.loading import user_line

COLUMN = "rlrun_reward_problem"
"""State field (and so column of verifiers' output) that holds the first problem as a plain dict."""


def watch_rewards(environment: Any, folder: Path) -> None:
    """Let every rubric of a `verifiers.Environment` note failures in the states' field `COLUMN`."""
    for rubric in rubrics_of(environment.rubric):
        rubric._call_individual_reward_func = _individual(rubric._call_individual_reward_func, folder)
        rubric._call_group_reward_func = _group(rubric._call_group_reward_func, folder)


def rubrics_of(rubric: Any) -> Iterator[Any]:
    """The rubric and everything nested in it: rubric groups, and the rubrics of an environment group."""
    yield rubric
    for inner in getattr(rubric, "rubrics", None) or []:
        yield from rubrics_of(inner)
    environments = getattr(rubric, "env_map", None)
    if isinstance(environments, Mapping):
        for environment in environments.values():
            yield from rubrics_of(environment.rubric)


def finite(value: Any) -> float | None:
    """The value as a float, or None when it is no finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _individual(original: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    async def call(func: Callable[..., Any], state: dict[str, Any]) -> float:
        def check(value: Any) -> float:
            number = finite(value)
            if number is None:
                _note(state, _not_finite(func, value))
                return 0.0
            return number

        def fail(error: Exception) -> float:
            _note(state, _raised(func, error, folder))
            return 0.0

        result: float = await original(func=_shell(func, check, fail), state=state)
        return result

    return call


def _group(original: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    async def call(func: Callable[..., Any], states: list[dict[str, Any]]) -> list[float]:
        def check(values: Any) -> list[float]:
            try:
                found = list(values)
            except TypeError:
                found = []
            if len(found) != len(states):
                for state in states:
                    _note(state, _not_finite(func, values, f"{len(states)} numbers"))
                return [0.0] * len(states)
            for state, value in zip(states, found, strict=True):
                if finite(value) is None:
                    _note(state, _not_finite(func, value))
            return [finite(value) or 0.0 for value in found]

        def fail(error: Exception) -> list[float]:
            for state in states:
                _note(state, _raised(func, error, folder))
            return [0.0] * len(states)

        result: list[float] = await original(func=_shell(func, check, fail), states=states)
        return result

    return call


def _shell(
    func: Callable[..., Any], check: Callable[[Any], Any], fail: Callable[[Exception], Any]
) -> Callable[..., Any]:
    # `wraps` keeps the signature, from which verifiers decides what to pass.
    @functools.wraps(func)
    async def shell(*args: Any, **kwargs: Any) -> Any:
        try:
            value = func(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:
            return fail(error)
        return check(value)

    shell.__name__ = _name(func)
    return shell


def _note(state: dict[str, Any], problem: Problem) -> None:
    if state.get(COLUMN) is None:
        state[COLUMN] = problem.to_json_dict()


def _raised(func: Callable[..., Any], error: Exception, folder: Path) -> Problem:
    where = user_line(error, folder)
    text = f"reward function {_name(func)} raised {type(error).__name__}: {str(error)[:300]}"
    return Problem(reason="RewardFunctionError", message=f"{text} (at {where})" if where else text)


def _not_finite(func: Callable[..., Any], value: Any, wanted: str = "a finite number") -> Problem:
    message = f"reward function {_name(func)} returned {repr(value)[:100]} where {wanted} is needed"
    return Problem(reason="RewardNotFinite", message=message)


def _name(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__name__", None) or type(func).__name__)
