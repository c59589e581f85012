"""References to other objects: a run's model, the checkpoint that it starts from, and the pool that serves a model.

Operator and rlrun-server compute the names of pools themselves, so that no object can redirect requests.
"""

import hashlib
from collections.abc import Sequence

from pydantic import ValidationError

from rlrun.api.model import RLModel, RLModelSpec
from rlrun.constants import INFERENCE_PORT, Reason
from rlrun.kube.objects import Obj, model_object_name
from rlrun.protocol.problem import Problem

NAME_LETTERS = 36
"""Maximum number of characters of a model's id in the name of its pool."""
SHARED_POOL_PREFIX = "rlpool-"
"""Prefix of the names of shared pools. Names of serving pools never have it."""


def find_model(model_id: str, models: Sequence[Obj]) -> RLModelSpec | Problem:
    """Return the spec of the RLModel with this id, or the problem to show to the user."""
    ids: list[str] = []
    for obj in models:
        found_id = str(obj.get("spec", {}).get("id", ""))
        ids.append(found_id)
        if found_id != model_id:
            continue
        try:
            return RLModel.from_object({k: v for k, v in obj.items() if k != "status"}).spec
        except ValidationError as error:
            first = error.errors()[0]
            return Problem(
                reason=Reason.MODEL_INVALID,
                message=(
                    f"RLModel {obj['metadata']['name']} is invalid ({'.'.join(map(str, first['loc']))}: "
                    f"{first['msg']}): ask the platform team to correct it."
                ),
            )
    known = ", ".join(sorted(ids)) if ids else "none; the platform team adds RLModels"
    return Problem(
        reason=Reason.MODEL_NOT_FOUND,
        message=f"spec.model: no RLModel has the id {model_id!r}. Available models: {known}.",
    )


CHECKPOINT_ID_PREFIX = "cp_"
"""Prefix of checkpoint ids, which is not valid in object names."""


def checkpoint_id(namespace: str, name: str) -> str:
    """Return the id of an RLCheckpoint, `cp_namespace.name`, which is valid in all namespaces."""
    return f"{CHECKPOINT_ID_PREFIX}{namespace}.{name}"


def split_checkpoint_id(reference: str, namespace: str) -> tuple[str, str]:
    """Split a `spec.checkpointId` into the namespace and the name of the RLCheckpoint.

    The id has the form `<namespace>/<name>`, `cp_<namespace>.<name>`, `cp_<name>` or `<name>`. If the id contains no
    namespace, the argument `namespace` is returned. Namespaces contain no dots, so the first dot ends the namespace.
    """
    separator = "/"
    if reference.startswith(CHECKPOINT_ID_PREFIX):
        reference, separator = reference.removeprefix(CHECKPOINT_ID_PREFIX), "."
    first, found, second = reference.partition(separator)
    return (first, second) if found else (namespace, first)


def pool_name(model: str) -> str:
    """Return the name of a model's serving pool, `rlserve-<model>-<digest>`. The digest distinguishes model ids that
    differ only in case or punctuation.
    """
    digest = hashlib.sha256(model.encode()).hexdigest()[:6]
    return f"rlserve-{model_object_name(model)[:NAME_LETTERS].strip('-')}-{digest}"


def shared_pool_name(model: str, digest: str) -> str:
    """Return the name of a shared pool, `rlpool-<model>-<digest>`. `digest` has 8 hexadecimal digits."""
    return f"{SHARED_POOL_PREFIX}{model_object_name(model)[:NAME_LETTERS].strip('-')}-{digest}"


def pool_url(namespace: str, model: str) -> str:
    """Return the OpenAI base URL of the namespace's serving pool for a base model."""
    return f"http://{pool_name(model)}.{namespace}.svc:{INFERENCE_PORT}/v1"
