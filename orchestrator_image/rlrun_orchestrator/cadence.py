"""What is due after which steps."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cadence:
    """How often, in steps; 0 is never but at the end."""

    max_steps: int
    checkpoints: int
    adapters: int
    supervised: int = 0
    """Steps at the beginning that learn from demonstrations."""

    def checkpoint_due(self, step: int) -> bool:
        """After every `checkpoints` steps and after the last."""
        return step >= self.max_steps or (self.checkpoints > 0 and step % self.checkpoints == 0)

    def adapter_due(self, step: int) -> bool:
        """After every `adapters` steps and after the last."""
        return step >= self.max_steps or (self.adapters > 0 and step % self.adapters == 0)
