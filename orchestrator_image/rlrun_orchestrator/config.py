"""What the process takes from its surroundings: ports, deadlines and paths, each with a default that fits a cluster."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from rlrun.constants import GATEWAY_PORT, INFERENCE_PORT, ORCHESTRATOR_STATUS_PORT, SIDECAR_PORT

CONVERSIONS: dict[object, Callable[[str], object]] = {
    Path: Path,
    int: int,
    float: float,
}


@dataclass(frozen=True)
class OrchestratorSettings:
    """Times are seconds. Every field can be set by the variable `RLRUN_<FIELD>`, upper case."""

    config: Path = Path("/etc/rlrun/run.json")
    config_interval: float = 2.0
    """Between two looks at the configuration, which may change while the run lives."""
    spool: Path = Path("/tmp/rlrun-spool")
    """Where what waits for S3 is kept, in a folder of the run's own."""
    spool_bytes: int = 2**30
    """At most that much; what is over the bound is given up, rollouts first."""
    termination_log: Path = Path("/dev/termination-log")
    gateway_port: int = GATEWAY_PORT
    status_port: int = ORCHESTRATOR_STATUS_PORT
    inference_port: int = INFERENCE_PORT
    sidecar_port: int = SIDECAR_PORT

    start_deadline: float = 1800.0
    """For each component at the start; a run's own startDeadlineSeconds goes first."""
    configuration_grace: float = 60.0
    """How long a mistake that a person may be mending right now (missing bucket, broken environment) is waited on."""
    trainer_deadline: float = 900.0
    """For a lost trainer to come back."""
    step_deadline: float = 3600.0
    """For one optimizer step."""
    inference_deadline: float = 900.0
    """For at least one replica to serve the policy."""
    environment_deadline: float = 900.0
    """For a lost environment to come back."""
    teacher_deadline: float = 900.0
    """For a distillation's teacher that does not answer to come back."""
    group_deadline: float = 1800.0
    """For one group of rollouts, all turns and scoring included."""
    finish_deadline: float = 1800.0
    """For the last checkpoint and adapter to be complete in S3."""
    drain_deadline: float = 60.0
    """For metrics and rollouts that are still to be written when the run ends."""
    stop_deadline: float = 40.0
    """For the same when the process is told to stop; shorter than the pod's grace period."""
    record_wait: float = 5.0
    """How long a step waits until S3 knows what it is made of, so that no other process can be wrong about it."""
    request_wait: float = 300.0
    """How long one completion request waits for a replica that can serve it."""
    poll_interval: float = 2.0
    """Between two looks at DNS and at the adapters of a replica, and between two tries of a waiting component."""
    publish_grace: float = 10.0
    """How long slower replicas may hold up a policy that another replica already serves."""
    environment_backoff: float = 1.0
    """Pause of an environment after a group that failed as a whole; doubles, up to sixty times this."""
    empty_batch_backoff: float = 30.0
    """After the first batch without one usable group; doubles, up to ten times this."""
    checkpoint_interval: int = 50
    """Steps between checkpoints of runs that do not say."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "OrchestratorSettings":
        """Raises ValueError that names the variable when a value is no number."""
        found: dict[str, object] = {}
        for field in fields(cls):
            name = f"RLRUN_{field.name.upper()}"
            text = environment.get(name)
            if not text:
                continue
            try:
                found[field.name] = CONVERSIONS[field.type](text)
            except ValueError as error:
                raise ValueError(f"{name}={text!r} is not a number: correct or unset the variable") from error
        return cls(**found)  # type: ignore[arg-type]
