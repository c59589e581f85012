"""References to policies, as a trainer makes them."""

import hashlib

from rlrun.protocol.policy import PolicyRef


def policy(version: int, run_uri: str, lineage: str = "") -> PolicyRef:
    digest = hashlib.sha256(f"{version}/{lineage}".encode()).hexdigest()
    return PolicyRef(version=version, digest=digest, uri=f"{run_uri}/policy/v{version:06d}-{digest[:8]}")
