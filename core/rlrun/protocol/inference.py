"""Messages between the orchestrator and the sidecars of its inference engines.

    GET    /healthz /readyz /metrics
    GET    /adapters                        -> AdapterList
    PUT    /adapters/{name}   LoadRequest   -> AdapterList, after the engine has loaded the policy
    DELETE /adapters/{name}                 -> AdapterList

Engines serve the OpenAI API on port 8000, where the name of a policy is its model name.
"""

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.schema import Schema
from rlrun.protocol.policy import PolicyRef


class LoadRequest(PolicyRef):
    """Request to serve a policy on an inference replica."""

    fallback: str | None = Field(default=None, max_length=4096, pattern=r"^https?://")
    """URL of the policy's folder on the trainer, used while S3 is unreachable or lacks the files."""


class AdapterList(Schema):
    """Names of the policies that an inference replica serves, according to its engine: adapters or, if the run trains
    all weights, the version of the weights in the engine. Empty if the engine has only the base model.
    """

    adapters: list[Text] = Field(default_factory=list, max_length=4096)
    load_seconds: float | None = None
    """Duration of the requested load in seconds, including the download. None if nothing was loaded."""
