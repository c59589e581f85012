"""The trainer: one pod with the base model and its optimizer, or several that share them.

One pod is a Deployment. Several are an Indexed Job: a pod's index is its rank among the nodes, pod 0 is where the
others meet and the only one that listens, and a pod that dies ends the training processes of all, which then begin
again together from the newest checkpoint.
"""

from typing import Any

from rlrun.api.model import Trainer
from rlrun.constants import TRAINER_PORT, Role
from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.model_volumes import weights
from rlrun_operator.resources.naming import RunIdentity
from rlrun_operator.resources.pod_templates import (
    MODEL_DIR,
    container,
    deployment,
    http_probes,
    pod_template,
    resources_of,
    s3_env_from,
    service,
)

Obj = dict[str, Any]

STARTUP_SECONDS = 2700
"""Reading tens of billions of parameters from disk and onto the GPUs."""
RENDEZVOUS_PORT = 29500
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
GRACE_SECONDS = 60
"""From SIGTERM to SIGKILL: for the step under way, a last checkpoint, and uploads."""
SHUTDOWN_SECONDS = 50
"""What the trainer itself plans with; the rest is for saying goodbye."""
TORCHRUN_SECONDS = 56
"""torchrun ends its processes after 30 s unless told otherwise."""
BACKOFF_LIMIT = 1000
"""The operator counts crashes itself (maxRestarts); the Job only has to go on."""


def command(shape: Trainer, master: str) -> list[str]:
    """How the trainer starts; `master` is the host of the first node. One process per GPU.

    The processes meet at a fixed address, also on one node: torchrun's `--standalone` waits for ever where the host's
    own name has no address.
    """
    module = ["-m", "rlrun_trainer"]
    if shape.nodes == 1 and shape.gpus <= 1:
        return ["python", *module]
    # Kubernetes puts a pod's index into this variable, and the kubelet puts its value in here.
    rank, address = ("0", "127.0.0.1") if shape.nodes == 1 else ("$(JOB_COMPLETION_INDEX)", master)
    return [
        "python", "-m", "torch.distributed.run",
        "--nproc-per-node", str(shape.gpus),
        "--nnodes", str(shape.nodes),
        "--node-rank", rank,
        "--master-addr", address,
        "--master-port", str(RENDEZVOUS_PORT),
        "--shutdown-timeout", str(TORCHRUN_SECONDS),
        *module,
    ]  # fmt: skip


def trainer(identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun) -> list[Obj]:
    """The trainer's pods and their Service."""
    shape = resolved.model.trainer
    together = shape.nodes > 1
    model = weights(identity, settings, resolved.model.source, shape.env)
    main = container(
        "trainer",
        shape.image or settings.images.trainer,
        settings.images.trainer,
        command=command(shape, f"{identity.trainer_job}-0.{identity.service_host(identity.trainer_nodes)}"),
        env={
            "RLRUN_MODEL": resolved.model.id,
            "RLRUN_MODEL_DIR": MODEL_DIR,
            "RLRUN_PORT": str(TRAINER_PORT),
            # What a restarted container finds there is left of uploads that nobody will finish.
            "RLRUN_SCRATCH": "/tmp/rlrun",
            "RLRUN_SHUTDOWN_SECONDS": str(SHUTDOWN_SECONDS),
            "HF_HUB_OFFLINE": "1",
        },
        extra_env=shape.env,
        env_from=s3_env_from(identity),
        ports={"http": TRAINER_PORT},
        mounts={"shm": "/dev/shm"},
        resources=resources_of(shape.resources, shape.gpus),
        # Only the first of several nodes listens; the others live and die with it.
        probes={} if together else http_probes("http", startup_seconds=STARTUP_SECONDS),
    )
    main["volumeMounts"].append(model.mount)
    template = pod_template(
        identity,
        settings,
        Role.trainer,
        "trainer",
        containers=[main],
        init_containers=model.init_containers,
        volumes={**model.volumes, "shm": {"emptyDir": {"medium": "Memory", "sizeLimit": settings.shm_size}}},
        priority_class=resolved.spec.priority_class_name,
        shape=shape,
        grace_seconds=GRACE_SECONDS,
        restart_policy="OnFailure" if together else "Always",
    )
    if together:
        return _nodes(identity, shape.nodes, template)
    return [
        deployment(identity, identity.trainer, Role.trainer, "trainer", 1, template),
        service(identity, identity.trainer, Role.trainer, "trainer", {"http": TRAINER_PORT}),
    ]


def _nodes(identity: RunIdentity, nodes: int, template: Obj) -> list[Obj]:
    """An Indexed Job, the headless Service by which its pods find each other, and the Service of the first one."""
    template["spec"]["subdomain"] = identity.trainer_nodes
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
    meeting = service(identity, identity.trainer_nodes, Role.trainer, "trainer", ports, headless=True, unready=True)
    meeting["spec"]["ports"][0]["targetPort"] = RENDEZVOUS_PORT
    first = service(identity, identity.trainer, Role.trainer, "trainer", {"http": TRAINER_PORT})
    first["spec"]["selector"][INDEX_LABEL] = "0"
    return [job, meeting, first]
