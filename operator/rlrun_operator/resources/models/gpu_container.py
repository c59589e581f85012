"""Init container that checks the GPUs of a trainer or an engine, before the weights are downloaded.

GPUs are missing if the node's driver is too old for the image, or if the node's container runtime does not add them.
Without the check a trainer would fail after the download, and an engine would crash repeatedly.
"""

from collections.abc import Mapping, Sequence

from rlrun.api.model import Pods
from rlrun.constants import Role
from rlrun.kube.objects import Obj
from rlrun.service.containers.gpu_check import COMPATIBILITY_VARIABLE, DEVICE_VARIABLE, GPUS_VARIABLE, NODE_VARIABLE

from rlrun_operator.config.settings import Image, OperatorSettings
from rlrun_operator.resources.base.pod_templates import container, has_devices, has_read_only_root, resources_of

NAME = "gpu-check"
DEVICE_VARIABLES = (DEVICE_VARIABLE, COMPATIBILITY_VARIABLE, "CUDA_", "NVIDIA_", "LD_LIBRARY_PATH")
"""Prefixes of variables that select or hide devices. Only these variables of the RLModel are set for the check."""


def with_gpu_variables(made: Obj, shape: Pods) -> Obj:
    """Add the variable with the number of GPUs that the container must have and, if it needs GPUs, the variable with
    the node's name. Variables that the RLModel sets are kept.

    If `shape.gpus` is 0 but the container gets other devices, no variable is added, because these devices may be GPUs,
    for example instances of a partitioned GPU (MIG). The process then uses a GPU if it finds one, and otherwise CPUs.
    """
    named = {entry["name"] for entry in made["env"]}
    own: list[Obj] = []
    if shape.gpus or not has_devices(shape):
        own.append({"name": GPUS_VARIABLE, "value": str(shape.gpus)})
    if shape.gpus:
        own.append({"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    return {**made, "env": [*made["env"], *(entry for entry in own if entry["name"] not in named)]}


def gpu_checks(
    settings: OperatorSettings,
    shape: Pods,
    role: Role,
    image: Image,
    command: Sequence[str],
    mounts: Mapping[str, str] | None = None,
) -> list[Obj]:
    """Return the init container that checks the GPUs with the role's image, or an empty list if `shape.gpus` is 0.

    Afterwards the kubelet assigns the same GPUs to the pod's other containers.
    """
    if not shape.gpus:
        return []
    made = container(
        NAME,
        image,
        own_image=shape.image,
        command=[*command, role.value],
        extra_env=[v for v in shape.env if v.value_from is None and v.name.startswith(DEVICE_VARIABLES)],
        read_only_mounts=mounts,
        read_only_root=has_read_only_root(settings, shape),
        resources=resources_of(settings.sidecar_resources, shape.gpus),
    )
    return [with_gpu_variables(made, shape)]
