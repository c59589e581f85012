"""Logging of metrics outside S3."""

from typing import ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec

REFUSED_BY_WANDB = "/\\#?%:\r\n"
"""Characters that names in addresses of Weights & Biases cannot have: INVALID_URL_CHARS of the client's source."""


def _address_rule(field: str, advice: str) -> Rule:
    """Return the rule that the field can be a part of an address of Weights & Biases."""
    return Rule(
        field,
        rf"!has(self.{field}) || self.{field}.matches('^[^/\\\\#?%:\r\n]+$')",
        rf"wandb.{field} cannot have line ends or any of / \ # ? % : because Weights & Biases refuses them: {advice}",
        lambda wandb: not set(REFUSED_BY_WANDB) & set(getattr(wandb, field) or ""),
    )


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

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        _address_rule("project", "write team/project as the entity team and the project project"),
        _address_rule("entity", "give the name of a team or user alone"),
    )
