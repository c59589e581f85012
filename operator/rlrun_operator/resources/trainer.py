"""Trainer: one pod with the base model and its optimizer, or several pods that train together.

A single pod is managed by a ReplicaSet, several by an Indexed Job: the pod's index is its node rank, and pod 0 is the
rendezvous host and the only one that listens. When a pod dies, the training processes of all pods end and restart
together from the newest checkpoint.
"""

from rlrun.api.model import Trainer
from rlrun.constants import ATTEMPT_LABEL, TRAINER_PORT, Role
from rlrun.kube.objects import Obj
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import RunIdentity
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


def trainer(
    identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun, storage: StorageAccess
) -> list[Obj]:
    """Return the trainer's workload and its Services."""
    shape = resolved.model.trainer
    together = shape.nodes > 1
    grace = shape.termination_grace_period_seconds or settings.termination_grace_period_seconds.trainer
    model = weights(settings, resolved.model, shape, storage)
    client = storage.client(StorageRole.trainer, storage.references(resolved.warm_start_from))
    main = container(
        "trainer",
        settings.images.trainer,
        own_image=shape.image,
        command=command(shape, f"{identity.trainer_job}-0.{identity.service_host(identity.trainer_nodes)}", grace),
        env={
            "RLRUN_MODEL": resolved.model.id,
            "RLRUN_MODEL_DIR": MODEL_DIR,
            "RLRUN_PORT": str(TRAINER_PORT),
            # Files that a restarted container finds there belong to interrupted uploads.
            "RLRUN_SCRATCH": "/tmp/rlrun",
            "RLRUN_SHUTDOWN_SECONDS": str(grace - PROCESS_MARGIN),
            # A restarted engine loads again each policy that a turn of the run may use.
            "RLRUN_KEEP_POLICIES": str(max(LEAST_POLICIES, resolved.spec.policies_in_use)),
            "HF_HUB_OFFLINE": "1",
            # Otherwise, all layers' weights would cross the network between nodes twice a step.
            **({"RLRUN_SHARD_SIZE": str(shape.shard_size or shape.gpus)} if shape.shard_size or together else {}),
            **cache_env(),
            **client.env,
        },
        extra_env=role_variables(shape.env),
        env_from=token_env_from(identity),
        ports={"http": TRAINER_PORT},
        mounts={"shm": "/dev/shm", CACHE: CACHE_DIR},
        read_only_mounts=client.mounts,
        resources=model_resources(shape),
        # With several nodes only the first one listens, and all end together.
        probes={} if together else http_probes("http", startup_seconds=STARTUP_SECONDS),
        read_only_root=has_read_only_root(settings, shape),
    )
    main["volumeMounts"].append(model.mount)
    check = ["python", "-m", "rlrun.service.containers.gpu_check"]
    template = pod_template(
        identity,
        settings,
        Role.trainer,
        "trainer",
        containers=[with_gpu_variables(main, shape)],
        storage=model_storage(settings, shape),
        init_containers=[
            *gpu_checks(settings, shape, Role.trainer, settings.images.trainer, check),
            *model.init_containers,
        ],
        volumes={
            **model.volumes,
            **client.volumes,
            **cache_volume(settings, shape),
            "shm": shared_memory(settings, shape),
        },
        priority_class=resolved.spec.priority_class_name,
        shapes=[shape],
        patch=shape.pod_template,
        grace_seconds=grace,
        restart_policy="OnFailure" if together else "Always",
    )
    if together:
        return _nodes(identity, shape.nodes, template)
    return [
        replica_set(identity, identity.trainer, Role.trainer, "trainer", 1, template),
        service(identity, identity.trainer, Role.trainer, "trainer", {"http": TRAINER_PORT}),
    ]


def _nodes(identity: RunIdentity, nodes: int, template: Obj) -> list[Obj]:
    """Return the Indexed Job, the headless Service of its pods, and the Service of the first pod."""
    template["spec"]["subdomain"] = identity.trainer_nodes
    keep_apart(template, {**identity.selector(Role.trainer, "trainer"), ATTEMPT_LABEL: str(identity.attempt)})
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": identity.metadata(identity.trainer_job, Role.trainer, "trainer"),
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
    rendezvous = service(identity, identity.trainer_nodes, Role.trainer, "trainer", ports, headless=True, unready=True)
    rendezvous["spec"]["ports"][0]["targetPort"] = RENDEZVOUS_PORT
    first = service(identity, identity.trainer, Role.trainer, "trainer", {"http": TRAINER_PORT})
    first["spec"]["selector"][INDEX_LABEL] = "0"
    return [job, rendezvous, first]
