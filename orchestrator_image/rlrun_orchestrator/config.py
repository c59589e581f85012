"""Settings of the process: ports, deadlines and paths, each with a default that suits a cluster."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from rlrun.api.base.address_rules import INTERNET_ONLY, AddressRules
from rlrun.constants import GATEWAY_PORT, INFERENCE_PORT, ORCHESTRATOR_STATUS_PORT, SIDECAR_PORT

CONVERSIONS: dict[object, Callable[[str], object]] = {
    Path: Path,
    int: int,
    float: float,
    str | None: str,
    AddressRules: lambda text: AddressRules.parse(text.split(",")),
}


@dataclass(frozen=True)
class OrchestratorSettings:
    """Settings of the process. Times are in seconds. The environment variable `RLRUN_<FIELD>`, in upper case, sets a
    field.
    """

    config: Path = Path("/etc/rlrun/run.json")
    config_interval: float = 2.0
    """Pause between two checks for configuration changes."""
    spool: Path = Path("/tmp/rlrun-spool")
    """Folder for uploads that wait for S3. The run uses a subfolder."""
    spool_bytes: int = 2**30
    """Maximum size of the spool in bytes. Beyond it objects are dropped, rollouts first."""
    termination_log: Path = Path("/dev/termination-log")
    gateway_port: int = GATEWAY_PORT
    status_port: int = ORCHESTRATOR_STATUS_PORT
    inference_port: int = INFERENCE_PORT
    sidecar_port: int = SIDECAR_PORT

    start_deadline: float = 1800.0
    """Time for each component to become ready at the start. The run's startDeadlineSeconds limits it further."""
    configuration_grace: float = 60.0
    """Time to correct a broken environment before the run fails."""
    storage_grace: float = 300.0
    """Time to correct a missing bucket or wrong S3 credentials before the run fails. SeaweedFS may deny access for two
    minutes after its start.
    """
    trainer_deadline: float = 900.0
    """Time for an unreachable trainer of the run to become reachable again."""
    shared_trainer_deadline: float = 86_400.0
    """Time for an unreachable trainer of a shared pool to become reachable again. It is long, because an outage of the
    pool must not count as a restart of the run. The run's startDeadlineSeconds and stallDeadlineSeconds may end the
    wait earlier.
    """
    step_deadline: float = 3600.0
    """Time limit for one optimizer step."""
    inference_deadline: float = 900.0
    """Time limit until at least one replica serves the policy."""
    environment_deadline: float = 900.0
    """Time for an unreachable environment to become reachable again."""
    teacher_deadline: float = 900.0
    """Time for an unreachable teacher of a distillation to become reachable again."""
    private_addresses: AddressRules = INTERNET_ONLY
    """Addresses outside the internet to which the run may connect, comma-separated."""
    finish_deadline: float = 1800.0
    """Time limit for the last checkpoint and adapter to be complete in S3, and for the final evaluation. An
    environment's rolloutTimeoutSeconds may extend the evaluation.
    """
    drain_deadline: float = 60.0
    """Time limit for the remaining uploads at the end of the run."""
    stop_deadline: float = 40.0
    """Time limit for the remaining uploads when the process is stopped. It must be shorter than the pod's grace period.
    """
    record_wait: float = 5.0
    """Maximum time that a step waits for S3 to store the record of its batch, which a later process may need."""
    request_wait: float = 300.0
    """Time limit for a completion request to wait for a replica that can serve it."""
    poll_interval: float = 2.0
    """Pause between two polls of DNS, of a replica's adapters, or of a component that is not ready yet."""
    publish_grace: float = 10.0
    """Maximum time to wait for the other replicas once one replica serves a new policy."""
    environment_backoff: float = 1.0
    """Initial pause of an environment after a group that failed as a whole. The pause doubles with each further failed
    group, up to sixty times this value.
    """
    empty_batch_backoff: float = 30.0
    """Pause after the first batch that has no usable group because of errors. Later pauses last twice this time."""
    most_filtered_groups: int = 1000
    """Number of consecutive filtered groups after which the run fails."""
    checkpoint_interval: int = 50
    """Number of steps between checkpoints if the run's spec does not set checkpoints.interval."""
    token: str | None = field(default=None, repr=False)
    """Token of the run, for its other processes and for the operator. If None, all requests are accepted."""
    environment_token: str | None = field(default=None, repr=False)
    """Token that this process sends to environments, and that environments send when they request packages."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "OrchestratorSettings":
        """Read the settings. Raises a ValueError that names the variable if a value is invalid."""
        values: dict[str, object] = {}
        for known in fields(cls):
            name = f"RLRUN_{known.name.upper()}"
            text = environment.get(name)
            if not text:
                continue
            try:
                values[known.name] = CONVERSIONS[known.type](text)
            except ValueError as error:
                raise ValueError(f"{name}={text!r} is invalid ({error}); correct or unset the variable") from error
        return cls(**values)  # type: ignore[arg-type]
