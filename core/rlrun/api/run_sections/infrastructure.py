"""Resources of the environment pods, and use of shared engines."""

from enum import StrEnum

from pydantic import Field

from rlrun.api.base.rules import Spec


class ComputeSize(StrEnum):
    """Size of an environment pod. The operator's settings define CPU, memory and number of workers for each size."""

    small = "S"
    medium = "M"
    large = "L"


class Infrastructure(Spec):
    """Resources of the environment pods, and use of shared engines. The RLModel configures trainers and engines."""

    compute_size: ComputeSize = Field(default=ComputeSize.medium, strict=False)
    """Size of environment pods: S for light environments, M for most, L for those that compile code or process images."""  # noqa: E501
    dedicated: bool = False
    """Gives the run its own trainer and engines, even if the RLModel shares them (sharing.mode: Namespace)."""
