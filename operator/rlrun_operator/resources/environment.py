"""Environments: one ReplicaSet and Service each. Only their pods run user code, so these pods have no access to S3 or
the Kubernetes API.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.environments import Environment
from rlrun.constants import ENVIRONMENT_PORT, Role, Use
from rlrun.kube.objects import Obj
from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.protocol.environment import VARIABLE, EnvironmentConfig, linked_secret
from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.config.settings import ComputeShape, OperatorSettings
from rlrun_operator.resources.access.egress import EgressAccess
from rlrun_operator.resources.access.reserved_secrets import why_reserved
from rlrun_operator.resources.base.naming import RunIdentity, environment_component
from rlrun_operator.resources.base.pod_templates import (
    container,
    disk_volume,
    http_probes,
    pod_template,
    replica_set,
    service,
)
from rlrun_operator.resources.orchestrator import WANDB_KEY

STARTUP_SECONDS = 120
PACKAGE_DIR = "/environment"


@dataclass(frozen=True)
class EnvironmentEntry:
    """Entry of env (`use` is `train`) or of eval.env (`eval`), with its index in that list."""

    index: int
    use: Use
    entry: Environment

    @property
    def component(self) -> str:
        """Component of the environment, such as `env-0` or `eval-1`."""
        return environment_component(self.index, self.use)

    @property
    def path(self) -> str:
        """Path of the entry in the run, such as `spec.env[0]` or `spec.eval.env[1]`."""
        return f"spec.{'env' if self.use == 'train' else 'eval.env'}[{self.index}]"


def environment_entries(spec: RLRunSpec) -> Iterator[EnvironmentEntry]:
    """Yield all environments of a run: env in order, then eval.env."""
    for i, entry in enumerate(spec.env):
        yield EnvironmentEntry(i, "train", entry)
    for i, evaluation in enumerate(spec.eval.env if spec.eval else []):
        yield EnvironmentEntry(i, "eval", evaluation)


def environment_variable(entry: Environment, workers: int, gateway_url: str) -> str:
    """Return the configuration of an environment server as JSON."""
    config = EnvironmentConfig(
        id=f"{entry.package_id}@{entry.version}" if entry.version else entry.package_id,
        name=entry.effective_name,
        args=entry.args,
        taskset=entry.taskset or None,
        harness=entry.harness or None,
        workers=workers,
        packages_url=gateway_url,
    )
    return config.to_variable()


def wants_egress(spec: RLRunSpec) -> bool:
    """Return whether an environment of the run lists hosts outside the cluster."""
    return any(item.entry.egress for item in environment_entries(spec))


def linked_secrets(identity: RunIdentity, settings: OperatorSettings, entry: Environment) -> list[Obj]:
    """Return the `envFrom` entry of the Secret linked to the environment by name, if runs may read this Secret."""
    name = linked_secret(entry.id)
    if why_reserved(identity.namespace, name, settings, operator_owned=False):
        return []
    return [{"secretRef": {"name": name, "optional": True}}]


def environment(
    identity: RunIdentity,
    settings: OperatorSettings,
    resolved: ResolvedRun,
    item: EnvironmentEntry,
    *,
    egress: EgressAccess | None = None,
    token: str | None = None,
) -> list[Obj]:
    """Return the ReplicaSet and the Service of one environment. `token` is the token of the run's environments.

    Raises:
        ValueError: The environment lists hosts in `egress`, but the argument `egress` is None.
    """
    shape: ComputeShape = settings.compute_sizes[resolved.spec.infrastructure.compute_size]
    name = identity.environment(item.index, item.use)
    gateway_url = resolved.endpoints.gateway_url
    variables = {
        VARIABLE: environment_variable(item.entry, shape.workers, gateway_url),
        # An explicit variable overrides envFrom, so that only the orchestrator gets the key.
        WANDB_KEY: "",
    }
    if token:
        # Not from a Secret, which would also contain the run's own token.
        variables[TOKEN_VARIABLE] = token
    if item.entry.egress:
        if egress is None:
            raise ValueError(f"{item.component} lists hosts in `egress`: pass the key for its grant in `egress`")
        variables |= egress.variables(identity, item.component, item.entry.egress, gateway_url)
    requests = {"cpu": shape.cpu, "memory": shape.memory}
    limits = {"memory": shape.memory, **({"cpu": shape.cpu_limit} if shape.cpu_limit else {})}
    main = container(
        "environment",
        settings.images.orchestrator,
        command=["python", "-m", "rlrun_environment"],
        env=variables,
        # If two Secrets have the same key, the later one takes precedence.
        env_from=linked_secrets(identity, settings, item.entry) + [e.to_json_dict() for e in resolved.spec.env_from],
        ports={"http": ENVIRONMENT_PORT},
        mounts={"package": PACKAGE_DIR},
        resources={"requests": requests, "limits": limits},
        probes=http_probes("http", startup_seconds=STARTUP_SECONDS),
    )
    template = pod_template(
        identity,
        settings,
        Role.environment,
        item.component,
        containers=[main],
        storage=shape.ephemeral_storage,
        volumes={"package": disk_volume(shape.ephemeral_storage)},
        priority_class=resolved.spec.priority_class_name,
        shapes=[settings.environments],
        grace_seconds=settings.termination_grace_period_seconds.environment,
    )
    if not settings.environments.host_users:
        template["spec"]["hostUsers"] = False
    return [
        replica_set(identity, name, Role.environment, item.component, item.entry.replicas, template),
        # The Service publishes unready pods, because the orchestrator reads the problem of an unready environment. With
        # several pods it is headless, because the orchestrator chooses a pod for each group.
        service(
            identity,
            name,
            Role.environment,
            item.component,
            {"http": ENVIRONMENT_PORT},
            headless=item.entry.replicas > 1,
            unready=True,
        ),
    ]
