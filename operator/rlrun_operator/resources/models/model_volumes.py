"""Volume with the weights of a base model: filled by an init container, or a claim or image that contains them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.api.base.kubernetes_types import EnvVar
from rlrun.api.model import Pods, RLModelSpec
from rlrun.kube.objects import Obj
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess, StorageClient
from rlrun_operator.resources.base.object_digest import digest_of
from rlrun_operator.resources.base.pod_templates import (
    EPHEMERAL_STORAGE,
    MODEL_DIR,
    container,
    disk_volume,
    resources_of,
    storage_limit,
)
from rlrun_operator.resources.models.model_variables import fetcher_variables

VOLUME = "models"
VOLUME_DIR = "/models"
CLAIM_PREFIX = "rlrun-weights-"
HUB_ENV = {
    "HF_HOME": "/models/.cache",
    # By default hf-xet keeps up to 8 GB of a file in memory (1.5), or a sixteenth of the container's limit (1.8).
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_SIZE": "256mb",
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_PERFILE_SIZE": "128mb",
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT": "1gb",
}
"""Variables of a fetcher for the Hugging Face hub. The RLModel can override them for fetchers with more memory."""


@dataclass(frozen=True)
class ModelVolume:
    """Init containers, volumes and mount that provide the model at MODEL_DIR."""

    init_containers: list[Obj]
    volumes: dict[str, Obj]
    mount: Obj
    """Volume mount for the container that reads the model."""


def model_storage(settings: OperatorSettings, shape: Pods) -> str | None:
    """Return the ephemeral-storage limit of each container and disk volume in a pod with a model, from the RLModel or
    else from the settings. None means no limit.
    """
    return storage_limit(shape.resources, settings.ephemeral_storage.model)


def cache_claim(model: RLModelSpec) -> str | None:
    """Return the name of the claim with the weights in each namespace, or None if the model has no cache.

    The name depends on the source and the volume's settings, so the files of a claim never change.
    """
    if model.cache is None:
        return None
    return f"{CLAIM_PREFIX}{digest_of((model.id, model.source, model.cache.to_json_dict()))}"


def is_cache_claim(name: str) -> bool:
    """Return whether `cache_claim` could return this name."""
    return re.fullmatch(f"{CLAIM_PREFIX}[0-9a-f]{{16}}", name) is not None


def weights(settings: OperatorSettings, model: RLModelSpec, shape: Pods, storage: StorageAccess) -> ModelVolume:
    """Return the volume for the model's source: hf://owner/name@COMMIT, s3://bucket/path, pvc://claim/path or
    oci://repository@DIGEST/path.

    Claims are in the namespace of the pods. The claim of a cache already contains the weights. For a model on the
    Hugging Face hub, the fetcher gets the hub's variables in the `env` of `shape` (HF_TOKEN, HF_ENDPOINT).
    """
    source, claim = model.source, cache_claim(model)
    if source.startswith("pvc://"):
        named, _, path = source.removeprefix("pvc://").partition("/")
        return ModelVolume([], {VOLUME: _claim_volume(named)}, _mount_of(path))
    if source.startswith("oci://"):
        repository, _, rest = source.removeprefix("oci://").partition("@")
        digest, _, path = rest.partition("/")
        image = {"reference": f"{repository}@{digest}", "pullPolicy": "IfNotPresent"}
        return ModelVolume([], {VOLUME: {"image": image}}, _mount_of(path))
    read_only = {"name": VOLUME, "mountPath": VOLUME_DIR, "readOnly": True}
    if claim is not None:
        return ModelVolume([], {VOLUME: _claim_volume(claim)}, read_only)
    client = fetcher_client(source, storage)
    volumes = {VOLUME: disk_volume(model_storage(settings, shape)), **client.volumes}
    fetch = fetcher(settings, source, shape.env, client)
    if (disk := shape.resources.requests.get(EPHEMERAL_STORAGE)) is not None:
        # A pod requests the larger of its init container's requests and the sum of its containers, so this adds
        # nothing.
        resources = fetch.get("resources", {})
        fetch["resources"] = {**resources, "requests": {**resources.get("requests", {}), EPHEMERAL_STORAGE: disk}}
    return ModelVolume([fetch], volumes, read_only)


def fetcher_client(source: str, storage: StorageAccess) -> StorageClient:
    """Return the S3 client settings of the fetcher, which are empty if the model is not in S3."""
    if not source.startswith("s3://"):
        return StorageClient({}, {}, {})
    return storage.client(StorageRole.fetcher, storage.references(source))


def fetcher(settings: OperatorSettings, source: str, env: Sequence[EnvVar], client: StorageClient) -> Obj:
    """Return the container that downloads the model to MODEL_DIR on the volume VOLUME."""
    return container(
        "fetch-model",
        settings.images.orchestrator,
        command=["python", "-m", "rlrun_model_fetcher"],
        args=[source, MODEL_DIR],
        env=HUB_ENV if source.startswith("hf://") else client.env,
        extra_env=fetcher_variables(source, env),
        mounts={VOLUME: VOLUME_DIR},
        read_only_mounts=client.mounts,
        resources=resources_of(settings.fetcher_resources),
    )


def _mount_of(path: str) -> Obj:
    mount: Obj = {"name": VOLUME, "mountPath": MODEL_DIR, "readOnly": True}
    if path.strip("/"):
        mount["subPath"] = path.strip("/")
    return mount


def _claim_volume(name: str) -> Obj:
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}
