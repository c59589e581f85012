"""Logging of metrics outside S3."""

from pydantic import Field

from rlrun.api.base.rules import Spec


class Wandb(Spec):
    """Project, entity and name of the run in Weights & Biases."""

    project: str | None = Field(default=None, min_length=1, max_length=128)
    """Project to log to. Unset: the namespace of the run."""
    entity: str | None = Field(default=None, min_length=1, max_length=128)
    """Team or user that owns the project. Unset: the default entity of the API key."""
    name: str | None = Field(default=None, min_length=1, max_length=128)
    """Name of the run in Weights & Biases. Unset: the display name of the run."""
    offline: bool = False
    """Sends nothing and needs no API key. The files of an offline run, for `wandb sync`, are stored with the run's artifacts."""  # noqa: E501
