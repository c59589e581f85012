"""Logging of metrics outside S3."""

from pydantic import Field

from rlrun.api.base.rules import Spec


class Wandb(Spec):
    """Project, entity and name of the run in Weights & Biases."""

    project: str = Field(min_length=1, max_length=128)
    """Project to log to."""
    entity: str | None = Field(default=None, min_length=1, max_length=128)
    """Team or user that owns the project. Unset: the default entity of the API key."""
    name: str | None = Field(default=None, min_length=1, max_length=128)
    """Name of the run in Weights & Biases. Unset: the display name of the run."""
