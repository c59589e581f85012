"""Names of policies: the version with the beginning of its digest, as engines, sidecars and folders know them."""

import re
from enum import StrEnum

from pydantic import Field

from rlrun.api.base.schema import Schema

POLICY_PREFIX = "policy-v"
NAME = re.compile(rf"{POLICY_PREFIX}\d{{6,}}-[0-9a-f]{{8}}")


def policy_name(version: int, digest: str) -> str:
    """Return the name of a policy; the digest keeps two trainings of the same version apart."""
    return f"{POLICY_PREFIX}{version:06d}-{digest[:8]}"


class PolicyKind(StrEnum):
    """What a policy version consists of."""

    adapter = "adapter"
    """A LoRA adapter, served beside others under its own name."""
    weights = "weights"
    """All weights of the model, which replace the ones that an engine has."""


class PolicyRef(Schema):
    """One immutable version of the policy in S3.

    The digest is part of the name: after a restart from an older checkpoint the run trains version 11 a second time,
    and an engine must never take the first version 11 for the second.
    """

    version: int = Field(ge=0)
    """Optimizer steps behind this policy in this run; 0 is the policy the run starts from."""
    digest: str = Field(min_length=8)
    """SHA-256 of the weights' file (adapter_model.safetensors or model.safetensors), hexadecimal."""
    uri: str
    """s3://bucket/... prefix that holds the files of the adapter or of the model, and manifest.json."""
    kind: PolicyKind = PolicyKind.adapter

    @property
    def name(self) -> str:
        """The adapter's (and so the model's) name in the inference engine."""
        return policy_name(self.version, self.digest)
