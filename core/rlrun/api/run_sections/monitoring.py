"""Where metrics go besides S3."""

from pydantic import Field

from rlrun.api.base.rules import Spec


class Wandb(Spec):
    """Names under which a run is logged to Weights & Biases."""

    project: str = Field(min_length=1, max_length=128)
    """Project to log to."""
    entity: str | None = Field(default=None, min_length=1, max_length=128)
    """Team or user that owns the project; the key's default when absent."""
    name: str | None = Field(default=None, min_length=1, max_length=128)
    """Name of the run there; the RLRun's name when absent."""
