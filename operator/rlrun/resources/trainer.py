"""The trainer: one pod with the base model and its optimizer."""

from typing import Any

from rlrun.resources.naming import RunIdentity
from rlrun.resources.pods import (
    MODEL_DIR,
    container,
    deployment,
    http_probes,
    pod_template,
    resources_of,
    s3_env_from,
    service,
)
from rlrun.resources.settings import Settings
from rlrun.resources.weights import weights
from rlrun.schema.resolved import ResolvedRun
from rlrun.schema.wire import TRAINER_PORT

Obj = dict[str, Any]

STARTUP_SECONDS = 2700
"""Reading tens of billions of parameters from disk and onto the GPUs."""


def trainer(identity: RunIdentity, settings: Settings, resolved: ResolvedRun) -> list[Obj]:
    """Deployment and Service of the trainer."""
    shape = resolved.model.trainer
    model = weights(identity, settings, resolved.model.source, shape.env)
    main = container(
        "trainer",
        shape.image or settings.images.trainer,
        settings.images.trainer,
        command=["python", "-m", "rlrun_trainer"],
        env={
            "RLRUN_MODEL": resolved.model.id,
            "RLRUN_MODEL_DIR": MODEL_DIR,
            "RLRUN_PORT": str(TRAINER_PORT),
            "HF_HUB_OFFLINE": "1",
        },
        extra_env=shape.env,
        env_from=s3_env_from(identity),
        ports={"http": TRAINER_PORT},
        mounts={"shm": "/dev/shm"},
        resources=resources_of(shape.resources, shape.gpus),
        probes=http_probes("http", startup_seconds=STARTUP_SECONDS),
    )
    main["volumeMounts"].append(model.mount)
    template = pod_template(
        identity,
        settings,
        "trainer",
        "trainer",
        containers=[main],
        init_containers=model.init_containers,
        volumes={**model.volumes, "shm": {"emptyDir": {"medium": "Memory", "sizeLimit": settings.shm_size}}},
        priority_class=resolved.spec.priority_class_name,
        shape=shape,
        # An upload that is under way gets the time to finish.
        grace_seconds=60,
    )
    return [
        deployment(identity, identity.trainer, "trainer", "trainer", 1, template),
        service(identity, identity.trainer, "trainer", "trainer", {"http": TRAINER_PORT}),
    ]
