"""Names of serving pools: operator and rlrun-server compute them, so that no object can name another address."""

import hashlib

from rlrun.constants import INFERENCE_PORT
from rlrun.kube.objects import model_object_name

NAME_LETTERS = 36


def pool_name(model: str) -> str:
    """Return `rlserve-<model>-<digest>`; the digest distinguishes ids that differ only in case or punctuation."""
    digest = hashlib.sha256(model.encode()).hexdigest()[:6]
    return f"rlserve-{model_object_name(model)[:NAME_LETTERS].strip('-')}-{digest}"


def pool_url(namespace: str, model: str) -> str:
    """Return the base URL of the OpenAI API of the namespace's pool for a base model."""
    return f"http://{pool_name(model)}.{namespace}.svc:{INFERENCE_PORT}/v1"
