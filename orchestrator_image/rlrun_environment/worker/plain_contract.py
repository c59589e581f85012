"""The contract of environments that are written without verifiers.

`load_environment` may return any object with a `dataset` and a method

    async def rollout(self, example, *, base_url, api_key, model, sampling) -> float | dict

A dict needs `reward`, unless there is a `score_group`, and may have `rewards` (results of single reward functions:
numbers, or dicts with `value` and `weight`), `metrics`, `prompt` (if it differs from the example's), `completion`,
`stop_condition` and `is_truncated`. Each rollout gets its own base URL, by which the gateway assigns requests of any
client library to their rollout, and its own deep copy of the example. Functions that are not async run in a thread. If
there is a method `score_group(example, rollouts)`, it receives the results of the group's rollouts that did not fail,
as dicts, and returns their rewards.
"""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from rlrun_environment.worker.user_code import sanitize


class UncopyableRowError(Exception):
    """Error for a dataset row with a value that cannot be copied, such as a lock or a connection."""


def plain_contract_violation(environment: Any) -> str | None:
    """Return the reason why the object is not a plain environment, phrased as a clause. Returns None if it is a plain
    environment.
    """
    rollout = getattr(environment, "rollout", None)
    if not callable(rollout):
        return "it has no method rollout"
    try:
        inspect.signature(rollout).bind({}, base_url="", api_key="", model="", sampling={})
    except TypeError as error:
        wanted = "rollout(self, example, *, base_url, api_key, model, sampling)"
        return f"its method must be {wanted}, but calling it this way fails: {error}"
    sets = {name: getattr(environment, name, None) for name in ("dataset", "eval_dataset")}
    if all(rows is None for rows in sets.values()):
        return "it has no dataset"
    for name, rows in sets.items():
        try:
            fits = rows is None or len(rows) == 0 or isinstance(rows[0], Mapping)
        except Exception:
            fits = False
        if not fits:
            return f"its {name} is {sanitize.short_repr(rows)} instead of a list of dicts"
        try:
            # Check only the first row, because rows are alike and copying all of them would take long.
            copy_row(rows[0] if rows else {})
        except UncopyableRowError as error:
            return f"row 0 of its {name} cannot be used: {error}"
    return None


def copy_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of the row for one rollout. Raises UncopyableRowError, which names the column."""
    copied: dict[str, Any] = {}
    memo: dict[int, Any] = {}
    for column, value in row.items():
        try:
            copied[column] = copy.deepcopy(value, memo)
        except Exception as error:
            raise UncopyableRowError(
                f"its column {sanitize.short_repr(column)} cannot be copied, but each rollout gets a copy of its "
                f"example: {sanitize.describe_exception(error)}. Keep locks and connections in the environment, or "
                "create them in `rollout`"
            ) from error
    return copied
