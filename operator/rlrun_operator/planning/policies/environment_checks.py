"""Validation of a run's environments against the rules of the platform: owners of packages, hosts outside."""

from fnmatch import fnmatchcase

from rlrun.api.run import RLRunSpec
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.resources.egress import KEY, is_allowed
from rlrun_operator.resources.environment import EnvironmentEntry, environment_entries, wants_egress


def check_packages(spec: RLRunSpec, namespace: str, settings: OperatorSettings) -> Problem | None:
    """Return a problem if the run's namespace must not use the package of an environment."""
    for item in environment_entries(spec):
        owner = item.entry.id.partition("/")[0]
        namespaces = settings.environment_owners.get(owner)
        if namespaces is None or any(fnmatchcase(namespace, pattern) for pattern in namespaces):
            continue
        return Problem(
            reason=Reason.ENVIRONMENT_NOT_ALLOWED,
            message=f"`{_field(item)}.id` is {item.entry.id}, but namespace {namespace} must not use packages of {owner}. "
            "Use another package, or ask the platform team to allow it.",
        )
    return None


def check_egress(spec: RLRunSpec, observation: RunObservation, settings: OperatorSettings) -> Problem | None:
    """Return a problem if an environment lists a host that the platform does not allow."""
    if not wants_egress(spec):
        return None
    if settings.egress is None:
        return Problem(
            reason=Reason.EGRESS_NOT_ALLOWED,
            message="`egress` of an environment is set, but this platform has no egress proxy. Remove the field, or "
            "ask the platform team to install it (`egress.enabled` of the chart).",
        )
    for item in environment_entries(spec):
        for host in item.entry.egress:
            if not is_allowed(host, settings.egress, observation.egress_hosts):
                choices = ", ".join((*settings.egress.allowed, *observation.egress_hosts)) or "none"
                return Problem(
                    reason=Reason.EGRESS_NOT_ALLOWED,
                    message=f"`{_field(item)}.egress` lists {host}, which this platform does not allow (allowed: "
                    f"{choices}). Remove it, or ask the platform team to allow it.",
                )
    if observation.egress_key is None:
        ref = settings.egress.key_secret
        return Problem(
            reason=Reason.EGRESS_UNAVAILABLE,
            message=f"Secret {ref.namespace}/{ref.name}, which signs the permission to use the egress proxy, does not "
            f"exist or has no `{KEY}`. The platform team must create it.",
        )
    return None


def _field(item: EnvironmentEntry) -> str:
    """Return the path of the entry in the run."""
    return f"spec.env[{item.index}]" if item.use == "train" else f"spec.eval.env[{item.index}]"
