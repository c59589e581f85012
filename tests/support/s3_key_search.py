"""Search for the platform's S3 key in the objects of a whole cluster."""

import base64
import json
from dataclasses import dataclass

from demo.install import SYSTEM_NAMESPACE, S3Access
from demo.kubectl import Kubectl

KINDS = ("secrets", "configmaps", "pods", "replicasets", "deployments", "jobs")
VARIABLE = "AWS_SECRET_ACCESS_KEY"


@dataclass(frozen=True)
class KeyHolders:
    """Objects with the key, or with a variable for it."""

    platform: tuple[str, ...]
    """In the platform's namespace, where the search must find some."""
    others: tuple[str, ...]


def find_s3_key(kubectl: Kubectl, s3: S3Access) -> KeyHolders:
    """Return the holders of the key, as kind namespace/name."""
    key = s3.secret_access_key
    parts = (VARIABLE, key, base64.b64encode(key.encode()).decode())
    found = []
    for kind in KINDS:
        for item in json.loads(kubectl("get", kind, "-A", "-o", "json"))["items"]:
            metadata = item["metadata"]
            if any(part in json.dumps(item) for part in parts):
                found.append((metadata["namespace"], f"{kind} {metadata['namespace']}/{metadata['name']}"))
    return KeyHolders(
        tuple(name for namespace, name in found if namespace == SYSTEM_NAMESPACE),
        tuple(name for namespace, name in found if namespace != SYSTEM_NAMESPACE),
    )
