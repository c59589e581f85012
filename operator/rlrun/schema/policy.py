"""Names of policies: the version with the beginning of its digest, as engines, sidecars and folders know them."""

import re

POLICY_PREFIX = "policy-v"
NAME = re.compile(rf"{POLICY_PREFIX}\d{{6,}}-[0-9a-f]{{8}}")


def policy_name(version: int, digest: str) -> str:
    """Return the name of a policy; the digest keeps two trainings of the same version apart."""
    return f"{POLICY_PREFIX}{version:06d}-{digest[:8]}"
