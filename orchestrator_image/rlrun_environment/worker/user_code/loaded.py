"""Loaded environment and its examples.

An Arrow column of structs has the fields of all its rows: a row that lacks a field has a null there, at every depth.
Arrow does not distinguish absent fields from nulls, so both are read as absent here. Nulls in lists keep their
position, as do nulls in values that Arrow does not decompose: `datasets.Json`, JSON texts, and lists of dicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rlrun.constants import Reason
from rlrun.protocol.environment import Split
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError


class EnvironmentForm(Enum):
    """Form in which an environment is written."""

    plain = auto()
    """Object that fulfills `plain_contract`, without verifiers."""
    verifiers = auto()
    """A `verifiers.Environment`."""
    taskset = auto()
    """A `verifiers.v1.Env` over a taskset."""


@dataclass(frozen=True)
class Loaded:
    """Environment that is ready to run, with its datasets."""

    environment: Any
    train: Any | None
    """Dataset, list of dicts, or `TaskRows` of a taskset. None if the environment has only an evaluation dataset."""
    eval: Any | None
    """Evaluation examples in the same form as `train`. None if evaluation uses the training examples."""
    form: EnvironmentForm = EnvironmentForm.verifiers

    @property
    def train_examples(self) -> int:
        """Number of training examples."""
        return len(self.train) if self.train is not None else 0

    @property
    def eval_examples(self) -> int:
        """Number of evaluation examples. Equals `train_examples` if there is no evaluation dataset."""
        return len(self.eval) if self.eval is not None else self.train_examples


def row_of(loaded: Loaded, split: Split, index: int) -> dict[str, Any]:
    """Return a copy of the example as a dict. If there is no evaluation dataset, both splits use the training dataset.

    Raises ProblemError (404, ExampleNotFound).
    """
    rows = _rows(loaded, split)
    count = len(rows) if rows is not None else 0
    if rows is None or index >= count:
        message = f"Example {index} of the {split} split does not exist: the split has {count} examples."
        raise ProblemError(404, Problem(reason=Reason.EXAMPLE_NOT_FOUND, message=message))
    return dict(rows[index])


def present_fields(row: Mapping[str, Any], loaded: Loaded, split: Split) -> dict[str, Any]:
    """Return the example without struct fields that are None, at every depth. All columns are kept."""
    features = getattr(_rows(loaded, split), "features", None)
    if not isinstance(features, Mapping):
        return dict(row)
    return {name: _present(value, features.get(name)) for name, value in row.items()}


def _rows(loaded: Loaded, split: Split) -> Any | None:
    return loaded.eval if split is Split.eval and loaded.eval is not None else loaded.train


def _present(value: Any, feature: Any) -> Any:
    """Return a value of an Arrow column without absent fields. `feature` is the value's type in `datasets.Features`."""
    if isinstance(feature, Mapping) and isinstance(value, Mapping):
        return {name: _present(entry, feature.get(name)) for name, entry in value.items() if entry is not None}
    # A list's type is an object with the element type, or a list that contains that one type.
    inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    if inner is not None and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_present(entry, inner) for entry in value]
    return value
