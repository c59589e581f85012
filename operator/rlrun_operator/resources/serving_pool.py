"""Serving pool: the engines that serve the deployed adapters of one base model in one namespace.

A pool uses the same engine as a run, with a sidecar that loads the desired adapters. It has no owner, because it
outlives the runs whose adapters it serves. The operator deletes the pool when its last adapter is undeployed.

A shared pool (`shared_pool.py`) has the same kind of identity and Deployment, but different access, sidecar and order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.api.base.pod_shape import PodShape
from rlrun.api.model import RLModelSpec
from rlrun.constants import (
    FIELD_MANAGER,
    HASH_ANNOTATION,
    INFERENCE_PORT,
    MANAGED_BY_LABEL,
    MODEL_ANNOTATION,
    SERVING_LABEL,
    SIDECAR_PORT,
    TOKEN_ANNOTATION,
    Role,
)
from rlrun.kube.objects import Obj, annotation
from rlrun.kube.references import pool_name, pool_url, shared_pool_name
from rlrun.protocol.access import TOKEN_VARIABLE, USER_API_KEY
from rlrun.protocol.engine_proof import POOL_SERVER_KEY_VARIABLE
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.serving import ORDER_DIR, ORDER_KEY, DesiredAdapters
from rlrun.protocol.shared_pool import pool_trainer_name
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.engine_access import pool_engine_with_access, token_variable
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import role_labels, token_secret_name
from rlrun_operator.resources.base.object_digest import digest_of
from rlrun_operator.resources.base.pod_templates import (
    container,
    http_probes,
    pod_template,
    resources_of,
    service,
)
from rlrun_operator.resources.inference import (
    ADAPTERS_DIR,
    SIDECAR_STARTUP_SECONDS,
    engine,
    engine_checks,
    engine_grace,
    engine_url,
    engine_volumes,
    lora_args,
    serve_args,
    vllm_max_lora_rank,
)
from rlrun_operator.resources.models.model_volumes import model_storage, weights
from rlrun_operator.resources.network import SERVER_LABELS, build_policy, model_egress, scrapes
from rlrun_operator.resources.platform import secret, service_account

COMPARED_DATA = ("ConfigMap", "Secret")
ROLE: Role = Role.inference
"""Role of a pool's engines. It is the same as for a run's engines, so the same problem messages and advice apply."""


@dataclass(frozen=True, order=True)
class PoolIdentity:
    """Identity of a serving pool or a shared pool."""

    namespace: str
    model: str
    """Id of the base model."""
    digest: str = ""
    """Digest of a shared pool's pod templates in 8 hexadecimal digits. Empty for a serving pool."""

    def __str__(self) -> str:
        return f"pool {self.namespace}/{self.name}"

    @property
    def name(self) -> str:
        """Name of the Deployment and the Service of the engines."""
        return shared_pool_name(self.model, self.digest) if self.is_shared else pool_name(self.model)

    @property
    def trainer(self) -> str:
        """Name of the Deployment and the Service of a shared pool's trainer."""
        return pool_trainer_name(self.name)

    @property
    def is_shared(self) -> bool:
        """True if the engines sample for runs, False if they serve deployed adapters."""
        return bool(self.digest)

    @property
    def component(self) -> str:
        """Component of the engines. Engines of a shared pool have the component of a run's own engines, `inference`."""
        return "inference" if self.is_shared else "serving"

    @property
    def service_account(self) -> str:
        """Name of the ServiceAccount of the pods."""
        return self.name

    @property
    def token_secret(self) -> str:
        """Name of the Secret with the pool's token."""
        return token_secret_name(self.name)

    @property
    def api_key_secret(self) -> str:
        """Name of the Secret with the key of the pool's users."""
        return f"{self.name}-api-key"

    @property
    def desired_config(self) -> str:
        """Name of the ConfigMap with the desired adapters."""
        return f"{self.name}-order"

    @property
    def url(self) -> str:
        """Base URL of the pool's OpenAI API."""
        return pool_url(self.namespace, self.model)

    def selector(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Return the labels that select the pool's pods. All pods of a serving pool are engines."""
        return {SERVING_LABEL: self.name, **(role_labels(role, component) if self.is_shared else {})}

    def labels(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Return all labels of an object of the pool, without labels of a run, so that no run selects it."""
        return {
            **self.selector(),
            "app.kubernetes.io/name": "rlrun",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": component or self.component,
            "app.kubernetes.io/part-of": "rlrun",
            MANAGED_BY_LABEL: FIELD_MANAGER,
            **role_labels(role, component),
        }

    def metadata(self, name: str, role: Role | None = None, component: str | None = None) -> dict[str, Any]:
        """Return the metadata of an object of the pool."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(role, component),
            "annotations": {MODEL_ANNOTATION: self.model},
        }


@dataclass(frozen=True)
class PoolCredentials:
    """Tokens and keys that the engines of a pool accept."""

    token: str = field(repr=False)
    """Token for the requests of the sidecar, which loads adapters."""
    api_key: str = field(repr=False)
    """API key with which users call the engines. They read it from a Secret in the namespace."""
    server_key: str = field(repr=False)
    """API key with which rlrun-server calls the engines on behalf of users."""


def pool_children(
    identity: PoolIdentity,
    settings: OperatorSettings,
    model: RLModelSpec,
    desired: DesiredAdapters,
    storage: StorageAccess,
    keys: PoolCredentials,
) -> list[Obj]:
    """Return all objects of a pool, dependencies first."""
    tokens = {TOKEN_VARIABLE: keys.token, POOL_SERVER_KEY_VARIABLE: keys.server_key}
    return with_digests(
        [
            service_account(identity),
            secret(identity, identity.token_secret, tokens),
            secret(identity, identity.api_key_secret, {USER_API_KEY: keys.api_key}),
            desired_config_map(identity, desired),
            *([network_policy(identity, settings)] if settings.network_policies else []),
            pool_deployment(identity, settings, model, storage, keys),
            service(identity, identity.name, ROLE, identity.component, {"openai": INFERENCE_PORT}),
        ]
    )


def with_digests(objects: Iterable[Obj]) -> list[Obj]:
    """Add the annotation with its digest, which `differs` compares, to each object except ConfigMaps and Secrets."""
    found = list(objects)
    for child in found:
        if child["kind"] not in COMPARED_DATA:
            child["metadata"]["annotations"][HASH_ANNOTATION] = digest_of(child)
    return found


def differs(desired: Obj, existing: Obj | None) -> bool:
    """Return whether the object is missing or was built from a different definition. For ConfigMaps and Secrets, the
    data is compared.
    """
    if existing is None:
        return True
    if desired["kind"] in COMPARED_DATA:
        return bool((existing.get("data") or {}) != desired["data"])
    return annotation(existing, HASH_ANNOTATION) != annotation(desired, HASH_ANNOTATION)


def desired_config_map(identity: PoolIdentity, desired: DesiredAdapters) -> Obj:
    """Return the ConfigMap with the desired adapters, which a pod reads when it starts."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": identity.metadata(identity.desired_config),
        "data": {ORDER_KEY: desired.model_dump_json(by_alias=True, exclude_none=True, indent=1)},
    }


def network_policy(identity: PoolIdentity, settings: OperatorSettings) -> Obj:
    """Return the policy that allows the namespace's pods and rlrun-server to reach the engine, the pods of the
    operator's namespace to reach the sidecar, and metrics scrapers to reach both.

    Egress is restricted if the settings define destinations.
    """
    system = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.lease_namespace}}}
    server = {**system, "podSelector": {"matchLabels": SERVER_LABELS}}
    ingress = [
        {"from": [{"podSelector": {}}, server], "ports": [{"port": INFERENCE_PORT, "protocol": "TCP"}]},
        {"from": [system], "ports": [{"port": SIDECAR_PORT, "protocol": "TCP"}]},
        *scrapes(settings, INFERENCE_PORT, SIDECAR_PORT),
    ]
    pods = {"matchLabels": identity.selector()}
    return build_policy(identity.metadata(identity.name), pods, ingress, model_egress(settings))


@dataclass(frozen=True)
class PoolEngines:
    """Parts of a pool's Deployment in which serving pools and shared pools differ."""

    replicas: int
    shapes: Sequence[PodShape]
    lora_args: Sequence[str]
    """Arguments of vLLM for adapters, and for a shared pool also for batching and usage."""
    add_access: Callable[[Obj], Obj]
    """Function that adds the access middleware to vLLM's container."""
    sidecar: str
    """Module of the sidecar."""
    sidecar_env: Mapping[str, str]
    order: Obj
    """Volume with the `DesiredAdapters` or `PoolOrder` that the sidecar reads when it starts."""
    order_dir: str
    """Path at which `order` is mounted in the sidecar."""
    secrets: Sequence[str] = field(repr=False)
    """Values of the variables that come from Secrets. Pods with old values are replaced."""


def pool_deployment(
    identity: PoolIdentity,
    settings: OperatorSettings,
    model: RLModelSpec,
    storage: StorageAccess,
    keys: PoolCredentials,
) -> Obj:
    """Return the Deployment of the engines. It does not depend on the adapters, so a new adapter restarts nothing."""
    serving = settings.serving
    cpu_loras = str(max(serving.max_cpu_loras, serving.max_loras))
    engines = PoolEngines(
        replicas=serving.replicas,
        shapes=[model.inference, serving],
        lora_args=[*lora_args(model, serving.max_loras), "--max-cpu-loras", cpu_loras],
        add_access=lambda vllm: pool_engine_with_access(vllm, identity.token_secret, identity.api_key_secret),
        sidecar="rlrun_adapter_sidecar.serving",
        sidecar_env={"RLRUN_MAX_LORA_RANK": str(vllm_max_lora_rank(model.lora.rank))},
        order={"configMap": {"name": identity.desired_config}},
        order_dir=ORDER_DIR,
        secrets=(keys.token, keys.api_key, keys.server_key),
    )
    return engine_deployment(identity, settings, model, storage, engines)


def engine_deployment(
    identity: PoolIdentity,
    settings: OperatorSettings,
    model: RLModelSpec,
    storage: StorageAccess,
    engines: PoolEngines,
) -> Obj:
    """Return the Deployment of a pool's engines with their sidecars."""
    shape = model.inference
    base = weights(settings, model, shape, storage)
    # The grant is sent with the order: in a variable, each new adapter or run would restart the engine.
    client = storage.client(StorageRole.serving, with_grant=False)
    vllm = engine(settings, model, serve_args(model, engines.lora_args), PolicyKind.adapter, base.mount)
    sidecar = container(
        "sidecar",
        settings.images.orchestrator,
        command=["python", "-m", engines.sidecar],
        env={
            "RLRUN_ADAPTERS_DIR": ADAPTERS_DIR,
            "RLRUN_ENGINE_URL": engine_url(settings),
            **engines.sidecar_env,
            **client.env,
        },
        extra_env=[token_variable(identity.token_secret)],
        ports={"sidecar": SIDECAR_PORT},
        mounts={"adapters": ADAPTERS_DIR},
        read_only_mounts={"order": engines.order_dir, **client.mounts},
        resources=resources_of(settings.sidecar_resources),
        probes=http_probes("sidecar", startup_seconds=SIDECAR_STARTUP_SECONDS),
    )
    template = pod_template(
        identity,
        settings,
        ROLE,
        identity.component,
        containers=[engines.add_access(vllm), sidecar],
        storage=model_storage(settings, shape),
        init_containers=[*engine_checks(settings, shape), *base.init_containers],
        volumes={**base.volumes, **engine_volumes(settings, shape), "order": engines.order, **client.volumes},
        shapes=engines.shapes,
        patch=shape.pod_template,
        grace_seconds=engine_grace(settings, shape),
    )
    # Replace one engine at a time, which needs no additional GPU and keeps the others serving.
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    spec = {"replicas": engines.replicas, "strategy": strategy, "template": template}
    return build_deployment(identity, identity.name, ROLE, identity.component, spec, engines.secrets)


def build_deployment(
    identity: PoolIdentity, name: str, role: Role, component: str, spec: Obj, secrets: Sequence[str]
) -> Obj:
    """Return a Deployment of a pool. `secrets` are the values of the variables that come from Secrets."""
    # Variables are not updated when a Secret changes, so pods with an old token or key must be replaced.
    digests = {MODEL_ANNOTATION: identity.model, TOKEN_ANNOTATION: digest_of(secrets)}
    spec["template"]["metadata"]["annotations"] |= digests
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": identity.metadata(name, role, component),
        "spec": {
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": 3600,
            "selector": {"matchLabels": identity.selector(role, component)},
            **spec,
        },
    }
