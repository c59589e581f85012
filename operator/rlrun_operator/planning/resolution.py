"""Resolution of an attempt's spec: its references are resolved once and then stored in a ConfigMap."""

import hmac
from collections.abc import Iterable
from functools import lru_cache

from rlrun.api.base.received import InputInvalid
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import EnvironmentPackage, ResolvedValues, RLRunStatus
from rlrun.constants import REFERENCES_ANNOTATION, RUN_UID_LABEL, Reason
from rlrun.kube.objects import Obj, annotation, attempt_of, label
from rlrun.kube.references import checkpoint_id, split_checkpoint_id
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import CONFIG_KEY, ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.spec import check_priority, resolve_references
from rlrun_operator.resources.access.storage_access import sign_references
from rlrun_operator.resources.environment import environment_entries
from rlrun_operator.resources.platform import resolve

PackageKey = tuple[str, str | None]


def recorded_packages(status: RLRunStatus, spec: RLRunSpec) -> list[EnvironmentPackage]:
    """Return the recorded packages of environments that are in the spec."""
    named = {(item.entry.package_id, item.entry.version) for item in environment_entries(spec)}
    return [package for package in status.environments if _key(package) in named]


def merged_packages(status: RLRunStatus, spec: RLRunSpec, report: RunStatus) -> list[EnvironmentPackage]:
    """Return the recorded packages, with packages added that are reported for the first time. Records are never
    replaced.
    """
    known = {_key(package): package for package in (*report.environments, *recorded_packages(status, spec))}
    entries = dict.fromkeys((item.entry.package_id, item.entry.version) for item in environment_entries(spec))
    return [known[key] for key in entries if key in known]


def changed_package(status: RLRunStatus, spec: RLRunSpec, report: RunStatus) -> Problem | None:
    """Return a problem if the orchestrator reports a package that differs from the recorded package."""
    recorded = {_key(package): package for package in recorded_packages(status, spec)}
    for package in report.environments:
        old = recorded.get(_key(package), package)
        if old != package:
            return Problem(
                reason=Reason.ENVIRONMENT_CHANGED,
                message=f"The environments use package {package.id} {package.version} ({package.digest}), but the run "
                f"used {old.version} ({old.digest}). Start a new run, with checkpointId to continue from its "
                "newest checkpoint.",
            )
    return None


def _key(package: EnvironmentPackage) -> PackageKey:
    return package.id, package.requested_version


MAX_KEPT = 16_384
"""Maximum length of a configuration that is cached in parsed form. Users can change ConfigMaps; 128 of this size take
60 MB.
"""
MAX_CONFIG = 768 * 1024
"""Maximum length of a configuration that is parsed. It contains the spec, the model and all defaults."""
MAX_ERROR = 512
"""Maximum length of an error about a configuration."""


def resolve_run(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings
) -> ResolvedRun | Problem:
    """Return the resolved spec of the current attempt, or the reason why it cannot be resolved."""
    identity = observation.identity(status.attempt)
    packages = recorded_packages(status, spec)
    frozen = frozen_config(observation, status.attempt)
    if frozen is not None:
        spec = _with_allowed_priority(_frozen_defaults(spec, frozen), settings)
        return resolve(identity, settings, spec, frozen.model, frozen.warm_start, packages)
    references = resolve_references(spec, observation, status, settings)
    if isinstance(references, Problem):
        return references
    return resolve(identity, settings, spec, *references, packages)


def resolved_values(resolved: ResolvedRun) -> ResolvedValues:
    """Return the values of an attempt's configuration that the status shows."""
    spec, reference = resolved.spec, resolved.spec.checkpoint_id
    trainer, inference = resolved.model.trainer, resolved.model.inference
    return ResolvedValues(
        model_source=resolved.model.source,
        max_tokens=resolved.max_tokens,
        checkpoint_interval=spec.checkpoints.interval,
        checkpoint_id=checkpoint_id(*split_checkpoint_id(reference, resolved.run.namespace)) if reference else None,
        wandb_project=spec.wandb.project if spec.wandb else None,
        gpus=trainer.nodes * trainer.all_gpus + inference.replicas * inference.all_gpus,
    )


def frozen_config(observation: RunObservation, attempt: int) -> ResolvedRun | None:
    """Return the attempt's configuration from its ConfigMap, or None if there is no readable configuration."""
    return attempt_config(observation.children, observation.uid, attempt)


def attempt_config(children: Iterable[Obj], uid: str, attempt: int) -> ResolvedRun | None:
    """Return the configuration of an attempt of the run with this uid, or None if it has no readable ConfigMap."""
    for obj in children:
        if obj["kind"] == "ConfigMap" and label(obj, RUN_UID_LABEL) == uid and attempt_of(obj) == attempt:
            return readable_config(obj)
    return None


def has_signed_references(observation: RunObservation, attempt: int, resolved: ResolvedRun) -> bool:
    """Return whether base model and checkpoint are those that the operator resolved for the attempt.

    Users can change the ConfigMap that stores them, so the signature is verified unless base model and checkpoint have
    just been resolved.
    """
    objects = observation.owned_children("ConfigMap", attempt=attempt)
    if not objects or readable_config(objects[0]) is None:
        return True
    signature = sign_references(observation.storage_key, observation.identity(attempt), resolved)
    return hmac.compare_digest(annotation(objects[0], REFERENCES_ANNOTATION), signature)


def readable_config(config_map: Obj) -> ResolvedRun | None:
    """Return the configuration in a run's ConfigMap, or None if it cannot be read. The result is shared between callers
    and must not be modified.
    """
    text = config_text(config_map)
    if len(text) > MAX_CONFIG:
        return None
    return _parse(text) if len(text) <= MAX_KEPT else _parse.__wrapped__(text)


def config_error(config_map: Obj) -> str:
    """Return the first invalid field of a configuration with its error, or an empty string."""
    text = config_text(config_map)
    if len(text) > MAX_CONFIG:
        return f'`data["{CONFIG_KEY}"]` is {len(text)} characters long; the maximum is {MAX_CONFIG}'
    try:
        ResolvedRun.parse(text)
    except InputInvalid as error:
        return error.cause[:MAX_ERROR]
    return ""


def config_text(config_map: Obj) -> str:
    """Return the configuration in a run's ConfigMap as JSON, or an empty string."""
    return str((config_map.get("data") or {}).get(CONFIG_KEY, ""))


# Cached because a reconcile reads the configuration several times. One takes 20 kB, and 0.1 ms to parse.
@lru_cache(maxsize=128)
def _parse(text: str) -> ResolvedRun | None:
    try:
        return ResolvedRun.parse(text)
    except InputInvalid:
        return None


def _with_allowed_priority(spec: RLRunSpec, settings: OperatorSettings) -> RLRunSpec:
    """Remove a PriorityClass that runs must not use from the spec.

    The class may be changed during an attempt, and pods that are lost later are recreated from the new spec.
    """
    if check_priority(spec, settings) is None:
        return spec
    return spec.model_copy(update={"priority_class_name": None})


def _frozen_defaults(spec: RLRunSpec, frozen: ResolvedRun) -> RLRunSpec:
    # The defaults of platform and model may have changed, but an attempt keeps the defaults from its start.
    interval = spec.checkpoints.interval or frozen.spec.checkpoints.interval
    max_tokens = spec.sampling.max_tokens or frozen.spec.sampling.max_tokens
    return spec.model_copy(
        update={
            "checkpoints": spec.checkpoints.model_copy(update={"interval": interval}),
            "sampling": spec.sampling.model_copy(update={"max_tokens": max_tokens}),
        }
    )
