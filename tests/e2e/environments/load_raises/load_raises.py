"""An environment that cannot be loaded, as when its data set is not where its author thought."""

from typing import Any


def load_environment(**_: Any) -> Any:
    """Raises FileNotFoundError."""
    raise FileNotFoundError("questions.jsonl is not in the package")
