"""Trainer: one pod with the base model and its optimizer, or several pods that train together.

A single pod is managed by a ReplicaSet, several by an Indexed Job: the pod's index is its node rank, and pod 0 is the
rendezvous host and the only one that listens. When a pod dies, the training processes of all pods end and restart
together from the newest checkpoint.

The trainer of a shared pool is a single pod of a Deployment (`shared_pool.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.api.base.kubernetes_types import EnvVar
from rlrun.api.model import RLModelSpec, Trainer
from rlrun.api.run import RLRunSpec
from rlrun.constants import ATTEMPT_LABEL, TRAINER_PORT, Driver, Role
from rlrun.kube.objects import Obj
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess, StorageClient
from rlrun_operator.resources.base.naming import OwnerIdentity, RunIdentity
from rlrun_operator.resources.base.pod_shape import keep_apart
from rlrun_operator.resources.base.pod_templates import (
    BACKOFF_LIMIT,
    MODEL_DIR,
    container,
    has_read_only_root,
    http_probes,
    model_resources,
    pod_template,
    replica_set,
    service,
    shared_memory,
    token_env_from,
)
from rlrun_operator.resources.models.gpu_container import gpu_checks, with_gpu_variables
from rlrun_operator.resources.models.model_caches import CACHE_DIR, cache_env, cache_volume
from rlrun_operator.resources.models.model_caches import VOLUME as CACHE
from rlrun_operator.resources.models.model_variables import role_variables
from rlrun_operator.resources.models.model_volumes import model_storage, weights

COMPONENT = "trainer"
STARTUP_SECONDS = 2700
"""Time limit in seconds for loading tens of billions of parameters onto the GPUs."""
RENDEZVOUS_PORT = 29500
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
PROCESS_MARGIN = 10
"""Seconds of the grace period that the trainer reserves for ending its processes."""
TORCHRUN_MARGIN = 4
"""Seconds before the end of the grace period at which torchrun kills its processes. By default torchrun kills them 30 s
after SIGTERM.
"""
LEAST_POLICIES = 8
"""Minimum number of a run's policies that the trainer keeps in S3."""
CLIENT_POLICIES = 16
"""Number of policies that are kept for a run with `driver: Client`, because its client decides how long to sample from
a policy.
"""


def command(shape: Trainer, master: str, grace_seconds: int) -> list[str]:
    """Return the trainer's command with one process per GPU. `master` is the host of the first node.

    The rendezvous address is fixed even for one node, because torchrun's `--standalone` hangs if the host name does not
    resolve.
    """
    module = ["-m", "rlrun_trainer"]
    if shape.nodes == 1 and shape.gpus <= 1:
        return ["python", *module]
    # Kubernetes sets the variable to the pod's index, and the kubelet expands it in the command.
    rank, address = ("0", "127.0.0.1") if shape.nodes == 1 else ("$(JOB_COMPLETION_INDEX)", master)
    return [
        "python", "-m", "torch.distributed.run",
        "--nproc-per-node", str(shape.gpus),
        "--nnodes", str(shape.nodes),
        "--node-rank", rank,
        "--master-addr", address,
        "--master-port", str(RENDEZVOUS_PORT),
        "--shutdown-timeout", str(grace_seconds - TORCHRUN_MARGIN),
        *module,
    ]  # fmt: skip


@dataclass(frozen=True)
class TrainerParts:
    """Parts of a trainer's pods in which trainers of runs and of shared pools differ."""

    client: StorageClient
    env: Mapping[str, str]
    token_env: Sequence[EnvVar] = ()
    """Variables with the token, which take precedence over variables of the RLModel."""
    token_env_from: Sequence[Obj] = ()
    volumes: Mapping[str, Obj] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    read_only_mounts: Mapping[str, str] = field(default_factory=dict)
    master: str = ""
    """Host of the first node."""
    priority_class: str | None = None


def trainer(
    identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun, storage: StorageAccess
) -> list[Obj]:
    """Return the workload and the Services of a run's own trainer."""
    parts = TrainerParts(
        client=storage.client(StorageRole.trainer, storage.references(resolved.warm_start_from)),
        env={"RLRUN_KEEP_POLICIES": str(keep_policies(resolved.spec))},
        token_env_from=token_env_from(identity),
        master=f"{identity.trainer_job}-0.{identity.service_host(identity.trainer_nodes)}",
        priority_class=resolved.spec.priority_class_name,
    )
    template = trainer_template(identity, settings, resolved.model, storage, parts)
    if resolved.model.trainer.nodes > 1:
        return _nodes(identity, resolved.model.trainer.nodes, template)
    return [
        replica_set(identity, identity.trainer, Role.trainer, COMPONENT, 1, template),
        trainer_service(identity, identity.trainer),
    ]


def keep_policies(spec: RLRunSpec) -> int:
    """Return the number of the run's policies that the trainer keeps in S3."""
    if spec.driver is Driver.client:
        return CLIENT_POLICIES
    # A restarted engine loads again each policy that a turn of the run may use.
    return max(LEAST_POLICIES, spec.policies_in_use)


def trainer_service(identity: OwnerIdentity, name: str) -> Obj:
    """Return the Service of a trainer."""
    return service(identity, name, Role.trainer, COMPONENT, {"http": TRAINER_PORT})


def trainer_template(
    identity: OwnerIdentity, settings: OperatorSettings, model: RLModelSpec, storage: StorageAccess, parts: TrainerParts
) -> Obj:
    """Return the pod template of a trainer. `storage` gives access to the base model."""
    shape = model.trainer
    together = shape.nodes > 1
    grace = shape.termination_grace_period_seconds or settings.termination_grace_period_seconds.trainer
    base = weights(settings, model, shape, storage)
    main = container(
        "trainer",
        settings.images.trainer,
        own_image=shape.image,
        command=command(shape, parts.master, grace),
        env={
            "RLRUN_MODEL": model.id,
            "RLRUN_MODEL_DIR": MODEL_DIR,
            "RLRUN_PORT": str(TRAINER_PORT),
            # Files that a restarted container finds there belong to interrupted uploads.
            "RLRUN_SCRATCH": "/tmp/rlrun",
            "RLRUN_SHUTDOWN_SECONDS": str(grace - PROCESS_MARGIN),
            **parts.env,
            "HF_HUB_OFFLINE": "1",
            # Otherwise, all layers' weights would cross the network between nodes twice a step.
            **({"RLRUN_SHARD_SIZE": str(shape.shard_size or shape.gpus)} if shape.shard_size or together else {}),
            **cache_env(),
            **parts.client.env,
        },
        extra_env=[*role_variables(shape.env), *parts.token_env],
        env_from=parts.token_env_from,
        ports={"http": TRAINER_PORT},
        mounts={"shm": "/dev/shm", CACHE: CACHE_DIR, **parts.mounts},
        read_only_mounts={**parts.read_only_mounts, **parts.client.mounts},
        resources=model_resources(shape),
        # With several nodes only the first one listens, and all end together.
        probes={} if together else http_probes("http", startup_seconds=STARTUP_SECONDS),
        read_only_root=has_read_only_root(settings, shape),
    )
    main["volumeMounts"].append(base.mount)
    check = ["python", "-m", "rlrun.service.containers.gpu_check"]
    return pod_template(
        identity,
        settings,
        Role.trainer,
        COMPONENT,
        containers=[with_gpu_variables(main, shape)],
        storage=model_storage(settings, shape),
        init_containers=[
            *gpu_checks(settings, shape, Role.trainer, settings.images.trainer, check),
            *base.init_containers,
        ],
        volumes={
            **base.volumes,
            **parts.client.volumes,
            **cache_volume(settings, shape),
            "shm": shared_memory(settings, shape),
            **parts.volumes,
        },
        priority_class=parts.priority_class,
        shapes=[shape],
        patch=shape.pod_template,
        grace_seconds=grace,
        restart_policy="OnFailure" if together else "Always",
    )


def _nodes(identity: RunIdentity, nodes: int, template: Obj) -> list[Obj]:
    """Return the Indexed Job, the headless Service of its pods, and the Service of the first pod."""
    template["spec"]["subdomain"] = identity.trainer_nodes
    keep_apart(template, {**identity.selector(Role.trainer, COMPONENT), ATTEMPT_LABEL: str(identity.attempt)})
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": identity.metadata(identity.trainer_job, Role.trainer, COMPONENT),
        "spec": {
            "completionMode": "Indexed",
            "parallelism": nodes,
            "completions": nodes,
            "backoffLimit": BACKOFF_LIMIT,
            "podReplacementPolicy": "TerminatingOrFailed",
            "template": template,
        },
    }
    ports = {"rendezvous": RENDEZVOUS_PORT}
    rendezvous = service(identity, identity.trainer_nodes, Role.trainer, COMPONENT, ports, headless=True, unready=True)
    rendezvous["spec"]["ports"][0]["targetPort"] = RENDEZVOUS_PORT
    first = trainer_service(identity, identity.trainer)
    first["spec"]["selector"][INDEX_LABEL] = "0"
    return [job, rendezvous, first]
