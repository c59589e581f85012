"""Volume with the weights of a base model: downloaded by an init container, or a mounted PersistentVolumeClaim."""

from dataclasses import dataclass
from typing import Any

from rlrun.api.model import Pods
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess, StorageClient
from rlrun_operator.resources.base.pod_templates import (
    MODEL_DIR,
    container,
    disk_volume,
    resources_of,
    storage_limit,
)
from rlrun_operator.resources.models.model_variables import fetcher_variables

Obj = dict[str, Any]


@dataclass(frozen=True)
class ModelVolume:
    """Init containers, volumes and mount that provide the model at MODEL_DIR."""

    init_containers: list[Obj]
    volumes: dict[str, Obj]
    mount: Obj
    """Volume mount for the container that reads the model."""


def model_storage(settings: OperatorSettings, shape: Pods) -> str | None:
    """Return the limit of ephemeral storage of a pod with a model: the RLModel's, or else the installation's."""
    return storage_limit(shape.resources, settings.ephemeral_storage.model)


def weights(settings: OperatorSettings, source: str, shape: Pods, storage: StorageAccess) -> ModelVolume:
    """Return the volume for `source`: hf://owner/name@COMMIT, s3://bucket/path or pvc://claim/path.

    The claim is in the run's namespace. The fetcher gets the variables of the Hugging Face Hub in the `env` of `shape`
    (HF_TOKEN, HF_ENDPOINT), if the model is there.
    """
    if source.startswith("pvc://"):
        claim, _, path = source.removeprefix("pvc://").partition("/")
        mount: Obj = {"name": "models", "mountPath": MODEL_DIR, "readOnly": True}
        if path.strip("/"):
            mount["subPath"] = path.strip("/")
        return ModelVolume([], {"models": {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}}, mount)
    client = StorageClient({}, {}, {})
    if source.startswith("s3://"):
        client = storage.client(StorageRole.fetcher, storage.references(source))
    fetcher = container(
        "fetch-model",
        settings.images.orchestrator,
        settings.images.orchestrator,
        command=["python", "-m", "rlrun_model_fetcher"],
        args=[source, MODEL_DIR],
        env={"HF_HOME": "/models/.cache"} if source.startswith("hf://") else client.env,
        extra_env=fetcher_variables(source, shape.env),
        mounts={"models": "/models"},
        read_only_mounts=client.mounts,
        resources=resources_of(settings.fetcher_resources),
    )
    volume = disk_volume(model_storage(settings, shape))
    volumes = {"models": volume, **client.volumes}
    return ModelVolume([fetcher], volumes, {"name": "models", "mountPath": "/models", "readOnly": True})
