"""Tasks of a taskset as numbered examples."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

INFINITE_TASKS = 10_000
"""Number of examples for a taskset that yields tasks endlessly. `args.select` selects other tasks."""


class TaskRows:
    """Tasks of a taskset by number. Tasks of an infinite taskset are created when they are first used."""

    def __init__(self, taskset: Any) -> None:
        bounded = getattr(taskset, "bounded", not taskset.INFINITE)
        self._rest: Iterator[Any] = iter(taskset)
        self._tasks: list[Any] = list(self._rest) if bounded else []
        self._length = len(self._tasks) if bounded else INFINITE_TASKS

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the fields of a task, with its system prompt as the first message of its prompt."""
        row: dict[str, Any] = self.task(index).data.model_dump(exclude_none=True)
        prompt = row.get("prompt", [])
        if row.get("system_prompt"):
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            row["prompt"] = [{"role": "system", "content": row["system_prompt"]}, *messages]
        return row

    def task(self, index: int) -> Any:
        """Return a task. Raises IndexError if there is none, or any exception that creating it raises."""
        if not 0 <= index < self._length:
            raise IndexError(index)
        self._tasks += islice(self._rest, max(0, index + 1 - len(self._tasks)))
        return self._tasks[index]
