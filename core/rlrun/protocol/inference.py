"""Messages between the orchestrator and the adapter sidecars."""

from pydantic import Field

from rlrun.api.base.schema import Schema
from rlrun.protocol.policy import PolicyRef


class LoadRequest(PolicyRef):
    """A policy that an inference replica shall serve."""

    fallback: str | None = Field(default=None, pattern=r"^https?://")
    """Where its files are when S3 does not answer or does not have them yet: the policy's folder at the trainer."""


class AdapterList(Schema):
    """The adapters that one inference replica serves now, as the engine's own model list says."""

    adapters: list[str] = Field(default_factory=list)
    load_seconds: float | None = None
    """How long the load asked for took, download included."""
