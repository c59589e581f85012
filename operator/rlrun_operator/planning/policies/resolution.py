"""Resolved spec of an attempt: its references are resolved once and then frozen in a ConfigMap."""

from pydantic import ValidationError
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.objects import attempt_of
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import CONFIG_KEY, ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.policies.validation import resolve_references
from rlrun_operator.resources.platform import resolve


def resolve_run(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings
) -> ResolvedRun | Problem:
    """Return the resolved spec of the current attempt, or the reason why it cannot be resolved."""
    identity = observation.identity(status.attempt)
    frozen = frozen_config(observation, status.attempt)
    if frozen is not None:
        return resolve(identity, settings, _frozen_interval(spec, frozen), frozen.model, frozen.warm_start_from)
    found = resolve_references(spec, observation)
    if isinstance(found, Problem):
        return found
    return resolve(identity, settings, spec, found.model, found.warm_start_from)


def frozen_config(observation: RunObservation, attempt: int) -> ResolvedRun | None:
    """Return the attempt's configuration from its ConfigMap, or None without a readable one."""
    for obj in observation.owned_children("ConfigMap"):
        if attempt_of(obj) != attempt:
            continue
        try:
            return ResolvedRun.parse((obj.get("data") or {}).get(CONFIG_KEY, ""))
        except ValidationError:
            return None
    return None


def _frozen_interval(spec: RLRunSpec, frozen: ResolvedRun) -> RLRunSpec:
    # The platform's default may have changed; a run keeps the default of its start.
    if spec.checkpoints.interval is not None:
        return spec
    checkpoints = spec.checkpoints.model_copy(update={"interval": frozen.spec.checkpoints.interval})
    return spec.model_copy(update={"checkpoints": checkpoints})
