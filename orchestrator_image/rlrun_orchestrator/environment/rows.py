"""Which row of an environment's data sets a request means."""

from typing import Any

from rlrun.schema.wire import Problem, Split
from rlrun.service.errors import ProblemError

from rlrun_orchestrator.environment.loading import Loaded


def row_of(loaded: Loaded, split: Split, index: int) -> dict[str, Any]:
    """The example as a dict of its own; the eval split is the training split where there is none.

    Raises ProblemError (404, ExampleNotFound).
    """
    rows = loaded.train
    if split is Split.eval and loaded.eval is not None:
        rows = loaded.eval
    count = len(rows) if rows is not None else 0
    if rows is None or index >= count:
        message = f"example {index} of the {split} split does not exist: it has {count}"
        raise ProblemError(404, Problem(reason="ExampleNotFound", message=message))
    return dict(rows[index])
