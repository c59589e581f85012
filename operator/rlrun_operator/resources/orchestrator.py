"""The orchestrator: a Job, because a run ends, and the Service of the gateway and the status.

Every pod of the Job runs one container once. Which exits are worth another pod is written in the Job itself, so that a
run goes on while the operator is away: 64 is a mistake that no restart mends, a disruption never counts.
"""

from typing import Any

from rlrun.constants import GATEWAY_PORT, ORCHESTRATOR_STATUS_PORT, ExitCode, Role
from rlrun.protocol.resolved import CONFIG_KEY, CONFIG_PATH, ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.naming import RunIdentity
from rlrun_operator.resources.pod_templates import (
    container,
    http_probes,
    pod_template,
    resources_of,
    s3_env_from,
    service,
)

Obj = dict[str, Any]

BACKOFF_LIMIT = 1000
"""The operator counts crashes itself (maxRestarts); the Job only has to go on."""
WANDB_KEY = "WANDB_API_KEY"
SPOOL = "/var/spool/rlrun"
"""What waits for S3 while it is away."""
SPOOL_BYTES = 2**30
SPOOL_SIZE_LIMIT = "1280Mi"
"""Above the bound that the orchestrator keeps to: a pod that exceeds it is evicted."""
STOP_SECONDS = 60
"""More than the orchestrator takes to write what is left when it is told to stop (RLRUN_STOP_DEADLINE and a little)."""


def wandb_keys(resolved: ResolvedRun) -> list[Obj]:
    """The key of Weights & Biases from each Secret that may hold it, and nothing else of these Secrets.

    The Secrets are the environments' own; which of them has the key, if any, is seen only when the pod starts.
    """
    if resolved.spec.wandb is None:
        return []
    return [
        {
            "name": f"{WANDB_KEY}_{i}",
            "valueFrom": {"secretKeyRef": {"name": source.secret_ref.name, "key": WANDB_KEY, "optional": True}},
        }
        for i, source in enumerate(resolved.spec.env_from)
    ]


def orchestrator(identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun) -> list[Obj]:
    """Job and Service of the orchestrator."""
    main = container(
        "orchestrator",
        settings.images.orchestrator,
        settings.images.orchestrator,
        command=["python", "-m", "rlrun_orchestrator"],
        env={
            "RLRUN_CONFIG": str(CONFIG_PATH),
            "RLRUN_START_DEADLINE": str(resolved.spec.start_deadline_seconds),
            "RLRUN_CHECKPOINT_INTERVAL": str(settings.defaults.checkpoint_interval),
            "RLRUN_SPOOL": SPOOL,
            "RLRUN_SPOOL_BYTES": str(SPOOL_BYTES),
        },
        env_from=s3_env_from(identity),
        ports={"gateway": GATEWAY_PORT, "status": ORCHESTRATOR_STATUS_PORT},
        mounts={"spool": SPOOL},
        # The whole folder: a file mounted by subPath would never show what has changed in the ConfigMap.
        read_only_mounts={"config": str(CONFIG_PATH.parent)},
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
        volumes={
            "config": {"configMap": {"name": identity.config, "items": config_items}},
            "spool": {"emptyDir": {"sizeLimit": SPOOL_SIZE_LIMIT}},
        },
        priority_class=resolved.spec.priority_class_name,
        grace_seconds=STOP_SECONDS,
        restart_policy="Never",
    )
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": identity.metadata(identity.orchestrator_job, Role.orchestrator, "orchestrator"),
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": BACKOFF_LIMIT,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": "orchestrator",
                            "operator": "In",
                            "values": [ExitCode.CONFIGURATION.value],
                        },
                    },
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": template,
        },
    }
    ports = {"gateway": GATEWAY_PORT, "status": ORCHESTRATOR_STATUS_PORT}
    # Environments fetch their packages while the orchestrator still waits for them to become ready.
    return [job, service(identity, identity.orchestrator, Role.orchestrator, "orchestrator", ports, unready=True)]
