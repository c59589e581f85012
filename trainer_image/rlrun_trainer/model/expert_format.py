"""Adapters of routed experts in the formats that vLLM loads.

vLLM accepts one format per model, which depends on the class of its architecture: a pair of factors for each expert and
projection (2-D), or, for classes with `is_3d_moe_weight`, the factors of all experts joined as by peft's
`target_parameters` (3-D). vLLM rejects an adapter in the other format.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rlrun_trainer.artifacts.checkpoint_names import StoredExperts
from rlrun_trainer.model.expert_layer import DOWN
from rlrun_trainer.model.peft_format import tensor_name

JOINED_ARCHITECTURES = frozenset(
    {
        "GptOssForCausalLM", "Qwen3VLMoeForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
        "Qwen3OmniMoeForConditionalGeneration", "InternS1ProForConditionalGeneration",
    }
)  # fmt: skip
"""Architectures whose classes in vLLM 0.32 have `is_3d_moe_weight`, and which therefore accept only the joined
format.
"""


@dataclass(frozen=True)
class ExpertFormat:
    """Format of the adapter of one parameter that joins projections of all experts."""

    module: str
    """Name in the checkpoint of the module that contains the experts."""
    parameter: str
    projections: tuple[str, ...]
    """Projections of each expert that the parameter joins, in the order of its rows. Empty for the joined format."""

    @classmethod
    def of(cls, parameter: str, stored: StoredExperts, *, joined: bool) -> "ExpertFormat":
        """Return the format for a parameter of the experts. `joined` is True if the engine accepts joined factors."""
        return cls(stored.module, parameter, () if joined else stored.projections[parameter])

    @property
    def peft_modules(self) -> list[str]:
        """Target modules with which stock peft finds the projections, if peft has rules for the model's family."""
        return [f"experts.{projection}" for projection in self.projections]

    @property
    def peft_parameters(self) -> list[str]:
        """Target parameters with which stock peft finds the parameter."""
        return [] if self.projections else [f"experts.{self.parameter}"]

    def split(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        """Convert the factors A [experts, rank, inputs] and B [experts, outputs, rank] to the tensors of an adapter
        file.
        """
        if not self.projections:
            # Columns of the joined factor B are ordered by rank, then by expert.
            return {self._joined("A"): a.flatten(0, 1), self._joined("B"): b.permute(1, 2, 0).flatten(1)}
        tensors = {}
        for place, (projection, rows) in enumerate(
            zip(self.projections, b.chunk(len(self.projections), dim=1), strict=True)
        ):
            # A file contains no memory twice.
            shared = a if place == 0 else a.clone()
            for expert in range(len(a)):
                tensors[self._single(expert, projection, "A")] = shared[expert]
                tensors[self._single(expert, projection, "B")] = rows[expert]
        return tensors

    def join(self, tensors: Mapping[str, torch.Tensor], experts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Convert the tensors of an adapter file to the factors A and B. Raises KeyError if one is missing, and
        RuntimeError if their shapes differ or the projections have different factors A.
        """
        if not self.projections:
            a, b = tensors[self._joined("A")], tensors[self._joined("B")]
            return a.unflatten(0, (experts, -1)), b.unflatten(1, (-1, experts)).permute(2, 0, 1).contiguous()
        first, *others = (
            torch.stack([tensors[self._single(expert, projection, "A")] for expert in range(experts)])
            for projection in self.projections
        )
        if not all(torch.equal(first, other) for other in others):
            raise RuntimeError(f"the projections {', '.join(self.projections)} of an expert have different lora_A")
        rows = [
            torch.stack([tensors[self._single(expert, projection, "B")] for expert in range(experts)])
            for projection in self.projections
        ]
        return first, torch.cat(rows, dim=1)

    def _joined(self, factor: str) -> str:
        return tensor_name(self.module if self.parameter == DOWN else f"{self.module}.base_layer", factor)

    def _single(self, expert: int, projection: str, factor: str) -> str:
        return tensor_name(f"{self.module}.{expert}.{projection}", factor)
