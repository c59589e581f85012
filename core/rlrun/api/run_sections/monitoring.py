"""Logging of metrics to services outside the platform."""

from typing import ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec

REFUSED_BY_WANDB = "/\\#?%:\r\n"
"""Characters that Weights & Biases refuses in names that are part of URLs: INVALID_URL_CHARS in the client's source."""


def _address_rule(field: str, advice: str) -> Rule:
    """Return a rule that requires a field to be valid in a Weights & Biases URL."""
    return Rule(
        field,
        rf"!has(self.{field}) || self.{field}.matches('^[^/\\\\#?%:\r\n]+$')",
        rf"wandb.{field} must not contain line breaks or the characters / \ # ? % : (Weights & Biases rejects them): "
        + advice,
        lambda wandb: not set(REFUSED_BY_WANDB) & set(getattr(wandb, field) or ""),
    )


class Wandb(Spec):
    """Project, entity and name of the run in Weights & Biases."""

    project: str | None = Field(default=None, min_length=1, max_length=128)
    """Project to log to. Defaults to the namespace of the run."""
    entity: str | None = Field(default=None, min_length=1, max_length=128)
    """Team or user that owns the project. Defaults to the default entity of the API key."""
    name: str | None = Field(default=None, min_length=1, max_length=128)
    """Name of the run in Weights & Biases. Defaults to the display name of the run."""
    offline: bool = False
    """Sends nothing and needs no API key. The files for `wandb sync` are stored with the run's artifacts."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        _address_rule("project", "to log to team/project, set entity to team and project to project"),
        _address_rule("entity", "use the name of a team or user only"),
    )
