"""How much the run has trained on in all, over every process of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Totals:
    """Cumulative; a step that is made again after a restart counts again, as the work did."""

    tokens: int = 0
    """Of training sequences, prompts included."""
    samples: int = 0
    """Training sequences."""
    problems: int = 0
    """Examples."""

    def add(self, tokens: int, samples: int, problems: int) -> dict[str, float]:
        """Counts a batch; the metrics `progress/...` of it and of all so far."""
        self.tokens += tokens
        self.samples += samples
        self.problems += problems
        return {
            "progress/tokens": float(tokens),
            "progress/samples": float(samples),
            "progress/problems": float(problems),
            "progress/total_tokens": float(self.tokens),
            "progress/total_samples": float(self.samples),
            "progress/total_problems": float(self.problems),
        }

    def state(self) -> dict[str, Any]:
        """As JSON types."""
        return {"tokens": self.tokens, "samples": self.samples, "problems": self.problems}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continues from what `state` gave, as far as it is there."""
        for name in ("tokens", "samples", "problems"):
            value = (state or {}).get(name)
            if isinstance(value, int):
                setattr(self, name, value)
