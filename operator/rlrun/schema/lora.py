"""The run's own wishes for its adapter, within what the model's entry in the catalogue allows."""

from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.schema.rules import LIST_TYPE, Rule, Spec


class RunLora(Spec):
    """Shape of this run's adapter; what is absent is as the RLModel says."""

    enabled: bool = True
    """false trains all weights instead of an adapter, where the RLModel allows it."""
    rank: int | None = Field(default=None, ge=1, le=512)
    """Rank of the adapter, at most the RLModel's."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout on the adapter's input while training. Anything but 0 makes trainer and engine disagree a little."""
    target_modules: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(
        default_factory=list, max_length=64, json_schema_extra={LIST_TYPE: "set"}
    )
    """Linear layers that get an adapter, among those of the RLModel; all of these when empty."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "enabled",
            "self.enabled || (!has(self.rank) && !has(self.dropout) && self.targetModules.size() == 0)",
            "rank, dropout and targetModules describe an adapter: remove them, or set enabled to true",
            lambda s: s.enabled or (s.rank is None and s.dropout is None and not s.target_modules),
        ),
    )
