"""Cache of a model's weights in a namespace: a claim, and the Job that fills it.

The claim is in the namespace of runs and serving pools, because pods can only mount claims in their own namespace, and
two PersistentVolumes for one CSI volume are not supported on the same node (kubernetes/kubernetes#132921). The users of
a namespace can therefore only modify weights that their own pods use. The status of the Job and its pods shows whether
the claim is complete. A replacement pod of the Job continues an interrupted download, and verifies a complete one in
seconds.
"""

from dataclasses import dataclass
from datetime import datetime

from rlrun.api.base.pod_shape import MeshInjection, PodShape
from rlrun.api.model import RLModelSpec
from rlrun.constants import (
    COMPONENT_LABEL,
    FIELD_MANAGER,
    HASH_ANNOTATION,
    MANAGED_BY_LABEL,
    MODEL_ANNOTATION,
    WEIGHTS_LABEL,
    Role,
)
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj, annotation, true_condition
from rlrun.kube.pods import Pod, is_leaving

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import role_labels
from rlrun_operator.resources.base.object_digest import digest_of
from rlrun_operator.resources.base.pod_templates import pod_failure_policy, pod_template, storage_limit
from rlrun_operator.resources.models.model_volumes import VOLUME, cache_claim, fetcher, fetcher_client
from rlrun_operator.resources.network import build_policy, model_egress
from rlrun_operator.resources.platform import service_account

COMPONENT = "weights"
SELECTOR = {COMPONENT_LABEL: COMPONENT, MANAGED_BY_LABEL: FIELD_MANAGER}
"""Labels of the objects of all caches."""
ROLE = Role.trainer
"""Role of the Job's pods, which do not belong to a run. Their problems and remedies are the same as those of a
trainer's download.
"""
FETCHER = "fetch-model"
BACKOFF_LIMIT = 6


@dataclass(frozen=True)
class CacheIdentity:
    """Identity of the cache for one source in one namespace."""

    namespace: str
    name: str
    """Name of the claim, the Job and the other objects."""
    model: str
    """Id of the base model."""

    @property
    def service_account(self) -> str:
        """Name of the ServiceAccount of the Job's pods."""
        return self.name

    def selector(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Return the labels that select the Job's pods."""
        return {WEIGHTS_LABEL: self.name}

    def labels(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Return all labels of an object of the cache, without labels of a run, so that no run selects it."""
        return {
            **self.selector(),
            **SELECTOR,
            "app.kubernetes.io/name": "rlrun",
            "app.kubernetes.io/part-of": "rlrun",
            **role_labels(role, None),
        }

    def metadata(self, name: str, role: Role | None = None, component: str | None = None) -> Obj:
        """Return the metadata of an object of the cache."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(role, component),
            "annotations": {MODEL_ANNOTATION: self.model},
        }


@dataclass(frozen=True)
class ObservedWeights:
    """State of the cache that a run or a serving pool needs."""

    claim: Obj | None = None
    job: Obj | None = None
    pods: tuple[Pod, ...] = ()
    """Pods of the Job, if it is not complete. Pods of earlier Jobs that are still terminating are not included."""
    events: tuple[Obj, ...] = ()
    """Events of a Job without an active pod. The Job's status does not show that the API server refuses its pods."""
    former_pods: tuple[Pod, ...] = ()
    """Pods of earlier Jobs, while there is no Job."""

    @property
    def is_filled(self) -> bool:
        """True if the claim has all files."""
        if self.claim is None or is_leaving(self.claim):
            return False
        return true_condition(self.job, "Complete") is not None or any(has_fetched(pod) for pod in self.pods)

    @property
    def failure(self) -> Obj | None:
        """The Job's Failed condition, or None if it has not failed."""
        return true_condition(self.job, "Failed")

    @property
    def failed_at(self) -> datetime | None:
        """Time at which the Job failed, or None if it has not failed."""
        return None if self.failure is None else parse_time(self.failure.get("lastTransitionTime"))


def cache_identity(namespace: str, model: RLModelSpec) -> CacheIdentity | None:
    """Return the identity of the model's cache in the namespace, or None if the model has no cache."""
    name = cache_claim(model)
    return None if name is None else CacheIdentity(namespace, name, model.id)


def identity_of(claim: Obj) -> CacheIdentity:
    """Return the identity of the cache to which the claim belongs."""
    metadata = claim["metadata"]
    return CacheIdentity(metadata["namespace"], metadata["name"], annotation(claim, MODEL_ANNOTATION))


def has_fetched(pod: Pod) -> bool:
    """Return whether the pod's fetcher has downloaded all files.

    The pod and its Job may not be complete yet, because an injected container may still be running.
    """
    ended = _fetcher_state(pod).get("terminated")
    return ended is not None and ended.get("exitCode") == 0


def is_fetching(pod: Pod) -> bool:
    """Return whether the pod's fetcher is running."""
    return "running" in _fetcher_state(pod)


def _fetcher_state(pod: Pod) -> Obj:
    return next((status.get("state") or {} for status in pod.statuses if status["name"] == FETCHER), {})


def owners(pod: Pod) -> set[str]:
    """Return the uids of the owners of a pod."""
    return {owner["uid"] for owner in pod.obj["metadata"].get("ownerReferences") or []}


def cache_objects(
    identity: CacheIdentity, settings: OperatorSettings, model: RLModelSpec, storage_key: bytes
) -> list[Obj]:
    """Return the objects of the cache, dependencies first."""
    metadata, pods = identity.metadata(identity.name), {"matchLabels": identity.selector()}
    return [
        _claim(identity, model),
        service_account(identity),
        # Deny all connections to the Job's pods, and restrict their egress as for trainers.
        *([build_policy(metadata, pods, [], model_egress(settings))] if settings.network_policies else []),
        _job(identity, settings, model, storage_key),
    ]


def _claim(identity: CacheIdentity, model: RLModelSpec) -> Obj:
    cache = model.cache
    assert cache is not None
    spec: Obj = {"accessModes": [cache.access_mode], "resources": {"requests": {"storage": cache.size}}}
    if cache.storage_class is not None:
        spec["storageClassName"] = cache.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": identity.metadata(identity.name),
        "spec": spec,
    }


def _job(identity: CacheIdentity, settings: OperatorSettings, model: RLModelSpec, storage_key: bytes) -> Obj:
    client = fetcher_client(model.source, StorageAccess(settings, storage_key, identity.namespace, identity.name))
    # If inference and trainer set the same variable, the trainer's value is used.
    env = [*model.inference.env, *model.trainer.env]
    template = pod_template(
        identity,
        settings,
        ROLE,
        COMPONENT,
        containers=[fetcher(settings, model.source, env, client)],
        storage=storage_limit(settings.fetcher_resources, settings.ephemeral_storage.orchestrator),
        volumes={VOLUME: {"persistentVolumeClaim": {"claimName": identity.name}}, **client.volumes},
        shapes=_shapes(model),
        restart_policy="Never",
    )
    metadata = identity.metadata(identity.name)
    metadata["annotations"][HASH_ANNOTATION] = digest_of(template)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": BACKOFF_LIMIT,
            # Two pods must not write to one claim.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": pod_failure_policy(FETCHER),
            "template": template,
        },
    }


def _shapes(model: RLModelSpec) -> list[PodShape]:
    """Return the trainer's placement, because a volume may be created in the zone in which its first pod runs.

    The trainer's other volumes are omitted, because they may be in use on another node. Mesh injection is refused
    unless the RLModel sets it, because an ordinary sidecar never ends.
    """
    placement = model.trainer.model_copy(update={"volumes": [], "volume_mounts": []})
    return [PodShape(mesh_injection=MeshInjection.refused), placement]
