"""Policies: kinds, references and names. A name contains the version and the first characters of the digest."""

import re
from enum import StrEnum

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.schema import Schema

POLICY_PREFIX = "policy-v"
NAME = re.compile(rf"{POLICY_PREFIX}\d{{6,}}-[0-9a-f]{{8}}")


def policy_name(version: int, digest: str) -> str:
    """Return the name of a policy. The digest distinguishes policies of the same version."""
    return f"{POLICY_PREFIX}{version:06d}-{digest[:8]}"


class PolicyKind(StrEnum):
    """Kind of weights in a policy version."""

    adapter = "adapter"
    """LoRA adapter, served together with others under its own name."""
    weights = "weights"
    """All weights of the model. An engine replaces its weights with them."""


class PolicyRef(Schema):
    """One immutable version of the policy in S3.

    The digest is part of the name. After a restart from an older checkpoint, a run trains a version again, and engines
    must not confuse the two results.
    """

    version: int = Field(ge=0)
    """Number of optimizer steps in this run. 0 is the policy that the run starts from. For a run with `driver: Client`,
    the number of the call that saved the policy.
    """
    digest: str = Field(min_length=8, max_length=128)
    """SHA-256 of the weights (adapter_model.safetensors or model.safetensors) in hexadecimal. For weights in numbered
    files, see `rlrun.storage.manifest.weights_digest`. The first 8 digits suffice to load a policy.
    """
    uri: Text
    """Folder in S3 with the files of the adapter or model, and manifest.json: s3://bucket/path."""
    kind: PolicyKind = PolicyKind.adapter

    @property
    def name(self) -> str:
        """Model name of the policy in the inference engine."""
        return policy_name(self.version, self.digest)
