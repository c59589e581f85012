"""How much room the environments get."""

from enum import StrEnum

from pydantic import Field

from rlrun.api.base.rules import Spec


class ComputeSize(StrEnum):
    """Cores, memory and workers of an environment pod; the platform's settings hold the table."""

    small = "S"
    medium = "M"
    large = "L"


class Infrastructure(Spec):
    """Resources of the environment pods; trainer and inference are the platform's business (RLModel)."""

    compute_size: ComputeSize = Field(default=ComputeSize.medium, strict=False)
    """S for light environments, M for most, L for those that compile code or process images."""
