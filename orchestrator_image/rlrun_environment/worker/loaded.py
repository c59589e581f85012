"""The loaded environment and its examples."""

from dataclasses import dataclass
from typing import Any

from rlrun.constants import Reason
from rlrun.protocol.environment import Split
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError


@dataclass(frozen=True)
class Loaded:
    """An environment that is ready to run, with its datasets."""

    environment: Any
    """A `verifiers.Environment`, or with `plain` an object that fulfils `plain_contract`."""
    train: Any | None
    """A `datasets.Dataset` or a list of dicts. None if the environment has only an evaluation dataset."""
    eval: Any | None
    """Like `train`. None if evaluation uses the training examples."""
    plain: bool = False
    """True for an environment that was written without verifiers."""

    @property
    def train_examples(self) -> int:
        """Number of training examples."""
        return len(self.train) if self.train is not None else 0

    @property
    def eval_examples(self) -> int:
        """Number of evaluation examples. Without an evaluation dataset, the number of training examples."""
        return len(self.eval) if self.eval is not None else self.train_examples


def row_of(loaded: Loaded, split: Split, index: int) -> dict[str, Any]:
    """Return a copy of the example as a dict. Without an evaluation dataset, both splits are the training dataset.

    Raises ProblemError (404, ExampleNotFound).
    """
    rows = loaded.train
    if split is Split.eval and loaded.eval is not None:
        rows = loaded.eval
    count = len(rows) if rows is not None else 0
    if rows is None or index >= count:
        message = f"Example {index} of the {split} split does not exist: the split has {count} examples."
        raise ProblemError(404, Problem(reason=Reason.EXAMPLE_NOT_FOUND, message=message))
    return dict(rows[index])
