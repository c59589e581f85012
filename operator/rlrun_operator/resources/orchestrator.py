"""Orchestrator: a Job, and the Service for its gateway and status.

Containers of the Job's pods are never restarted; the Job creates new pods instead. The Job's pod failure policy handles
failures, so that a run continues while the operator is down: exit code 64 (configuration error) fails the Job, and
disruptions do not count.
"""

from rlrun.constants import (
    GATEWAY_CONTAINER_PORT,
    GATEWAY_PORT,
    HASH_ANNOTATION,
    ORCHESTRATOR_STATUS_CONTAINER_PORT,
    ORCHESTRATOR_STATUS_PORT,
    Role,
)
from rlrun.kube.objects import Obj
from rlrun.protocol.resolved import CONFIG_KEY, CONFIG_PATH, ResolvedRun
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.base.object_digest import digest_of
from rlrun_operator.resources.base.pod_templates import (
    BACKOFF_LIMIT,
    container,
    http_probes,
    pod_failure_policy,
    pod_template,
    resources_of,
    service,
    storage_limit,
    token_env_from,
)

WANDB_KEY = "WANDB_API_KEY"
SPOOL = "/var/spool/rlrun"
"""Folder for objects that wait for upload while S3 is unreachable."""
SPOOL_BYTES = 2**30
SPOOL_SIZE_LIMIT = "1280Mi"
"""Size limit of the spool volume. It is above SPOOL_BYTES, the orchestrator's own limit, because Kubernetes evicts a
pod whose volume exceeds its size limit.
"""
PROCESS_MARGIN = 20
"""Seconds of the grace period after RLRUN_STOP_DEADLINE, reserved for closing servers and connections."""


def wandb_keys(resolved: ResolvedRun) -> list[Obj]:
    """Return variables with the Weights & Biases key of each Secret in envFrom.

    The Secrets are meant for environments, so no other keys are included. A variable is unset if its Secret does not
    have the key when the pod starts.
    """
    wandb = resolved.spec.wandb
    if wandb is None or wandb.offline:
        return []
    return [
        {
            "name": f"{WANDB_KEY}_{i}",
            "valueFrom": {"secretKeyRef": {"name": source.secret_ref.name, "key": WANDB_KEY, "optional": True}},
        }
        for i, source in enumerate(resolved.spec.env_from)
    ]


def readable_packages(resolved: ResolvedRun) -> list[str]:
    """Return the folders of the run's environment packages, each with all versions of the package."""
    root = resolved.artifacts.environments_uri
    spec = resolved.spec
    entries = [*spec.env, *(spec.eval.env if spec.eval else [])]
    return sorted({f"{root}/{entry.package_id}" for entry in entries})


def package_owners(resolved: ResolvedRun) -> list[str]:
    """Return the folders of the owners of the run's environment packages. The orchestrator lists them to suggest names
    for a misspelled package.
    """
    return sorted({folder.rpartition("/")[0] for folder in readable_packages(resolved)})


def orchestrator(
    identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun, storage: StorageAccess
) -> list[Obj]:
    """Return the Job and the Service of the orchestrator."""
    grace = settings.termination_grace_period_seconds.orchestrator
    client = storage.client(StorageRole.orchestrator, readable_packages(resolved), package_owners(resolved))
    main = container(
        "orchestrator",
        settings.images.orchestrator,
        command=["python", "-m", "rlrun_orchestrator"],
        env={
            "RLRUN_CONFIG": str(CONFIG_PATH),
            "RLRUN_START_DEADLINE": str(resolved.spec.start_deadline_seconds),
            "RLRUN_STOP_DEADLINE": str(grace - PROCESS_MARGIN),
            "RLRUN_CHECKPOINT_INTERVAL": str(settings.defaults.checkpoint_interval),
            "RLRUN_GATEWAY_PORT": str(GATEWAY_CONTAINER_PORT),
            "RLRUN_STATUS_PORT": str(ORCHESTRATOR_STATUS_CONTAINER_PORT),
            "RLRUN_SPOOL": SPOOL,
            "RLRUN_SPOOL_BYTES": str(SPOOL_BYTES),
            # Set even if empty, because `env` overrides a variable of the same name in the Secret of `envFrom`.
            "RLRUN_PRIVATE_ADDRESSES": ",".join(settings.private_addresses),
            **client.env,
        },
        env_from=token_env_from(identity),
        ports={"gateway": GATEWAY_CONTAINER_PORT, "status": ORCHESTRATOR_STATUS_CONTAINER_PORT},
        mounts={"spool": SPOOL},
        # Mount the whole folder: a file mounted with subPath is not updated when the ConfigMap changes.
        read_only_mounts={"config": str(CONFIG_PATH.parent), **client.mounts},
        resources=resources_of(settings.orchestrator_resources),
        probes=http_probes("status", startup_seconds=120, ready_path="/healthz"),
    )
    main["env"] += wandb_keys(resolved)
    config_items = [{"key": CONFIG_KEY, "path": CONFIG_KEY}]
    template = pod_template(
        identity,
        settings,
        Role.orchestrator,
        "orchestrator",
        containers=[main],
        storage=storage_limit(settings.orchestrator_resources, settings.ephemeral_storage.orchestrator),
        volumes={
            "config": {"configMap": {"name": identity.config, "items": config_items}},
            "spool": {"emptyDir": {"sizeLimit": SPOOL_SIZE_LIMIT}},
            **client.volumes,
        },
        priority_class=resolved.spec.priority_class_name,
        shapes=[settings.orchestrator],
        grace_seconds=grace,
        restart_policy="Never",
    )
    job: Obj = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": identity.metadata(identity.orchestrator_job, Role.orchestrator, "orchestrator"),
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": BACKOFF_LIMIT,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": pod_failure_policy("orchestrator"),
            "template": template,
        },
    }
    job["metadata"]["annotations"][HASH_ANNOTATION] = digest_of(job["spec"])
    ports = {"gateway": GATEWAY_PORT, "status": ORCHESTRATOR_STATUS_PORT}
    # Publish unready pods: environments download packages before the orchestrator is ready.
    return [job, service(identity, identity.orchestrator, Role.orchestrator, "orchestrator", ports, unready=True)]
