"""Resolves the spec of an attempt. Its references are resolved once and then stored in the attempt's ConfigMap."""

import hmac
from collections.abc import Iterable
from functools import lru_cache

from rlrun.api.base.received import InputInvalid
from rlrun.api.model import RLModelSpec, SharingMode
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import EnvironmentPackage, ResolvedValues, RLRunStatus
from rlrun.constants import REFERENCES_ANNOTATION, RUN_UID_LABEL, Driver, Reason
from rlrun.kube.objects import Obj, annotation, attempt_of, label
from rlrun.kube.references import checkpoint_id, split_checkpoint_id
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import CONFIG_KEY, ResolvedRun
from rlrun.protocol.session_specs import CLIENT_MAX_STEPS, session_spec
from rlrun.protocol.trainer import SessionSpec

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.spec import check_priority, parse_spec, resolve_references
from rlrun_operator.resources.access.storage_access import sign_references
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.environment import environment_entries
from rlrun_operator.resources.platform import resolve, run_layout
from rlrun_operator.resources.shared_pool import pool_named, shared_pool

PackageKey = tuple[str, str | None]


def recorded_packages(status: RLRunStatus, spec: RLRunSpec) -> list[EnvironmentPackage]:
    """Return the recorded packages of environments that are in the spec."""
    named = {(item.entry.package_id, item.entry.version) for item in environment_entries(spec)}
    return [package for package in status.environments if _key(package) in named]


def merged_packages(status: RLRunStatus, spec: RLRunSpec, report: RunStatus) -> list[EnvironmentPackage]:
    """Return the recorded packages, and packages that are reported for the first time. Records are never replaced."""
    known = {_key(package): package for package in (*report.environments, *recorded_packages(status, spec))}
    entries = dict.fromkeys((item.entry.package_id, item.entry.version) for item in environment_entries(spec))
    return [known[key] for key in entries if key in known]


def changed_package(status: RLRunStatus, spec: RLRunSpec, report: RunStatus) -> Problem | None:
    """Return a problem if the orchestrator reports a package that differs from the recorded one."""
    recorded = {_key(package): package for package in recorded_packages(status, spec)}
    for package in report.environments:
        old = recorded.get(_key(package), package)
        if old != package:
            return Problem(
                reason=Reason.ENVIRONMENT_CHANGED,
                message=f"The environments use package {package.id} {package.version} ({package.digest}), but the run "
                f"used {old.version} ({old.digest}). Start a new run. To continue from this run's newest "
                "checkpoint, set `spec.checkpointId`.",
            )
    return None


def _key(package: EnvironmentPackage) -> PackageKey:
    return package.id, package.requested_version


MAX_KEPT = 16_384
"""Maximum length of a configuration that is cached in parsed form. Users can change ConfigMaps; 128 configurations of
this size take 60 MB.
"""
MAX_CONFIG = 768 * 1024
"""Maximum length of a configuration that is parsed. It contains the spec, the model and all defaults."""
MAX_ERROR = 512
"""Maximum length of an error about a configuration."""
MAX_SESSION = 16_384
"""Maximum length of a session's specification as JSON in a `TrainerOrder`."""


def why_dedicated(spec: RLRunSpec, *, has_tokens: bool, is_evicted: bool = False) -> str | None:
    """Return why the run has a trainer and engines of its own although its RLModel shares them, or None. `has_tokens`
    is False if the processes of runs require no tokens, and `is_evicted` is `status.poolEvicted`.
    """
    if is_evicted:
        return "the trainer of its shared pool refused it (`PoolEvicted`)"
    if spec.infrastructure.dedicated:
        return "`spec.infrastructure.dedicated` is true"
    if not spec.lora.enabled:
        return "shared engines serve adapters, and `spec.lora.enabled` is false"
    if spec.queue_name is not None:
        return "Kueue (`spec.queueName`) admits a run with all its pods"
    if not has_tokens:
        return "shared engines distinguish runs by their tokens, and this platform has no key for tokens"
    return None


def shares_engines(spec: RLRunSpec, model: RLModelSpec, *, has_tokens: bool, is_evicted: bool) -> bool:
    """Return whether an attempt of the run uses a shared pool."""
    if model.sharing.mode is not SharingMode.namespace:
        return False
    return why_dedicated(spec, has_tokens=has_tokens, is_evicted=is_evicted) is None


def dedication_note(observation: RunObservation, spec: RLRunSpec, resolved: ResolvedRun) -> str:
    """Return why the run has a trainer and engines of its own although its RLModel shares them, as a sentence, or an
    empty string.
    """
    if resolved.model.sharing.mode is SharingMode.dedicated or resolved.endpoints.pool is not None:
        return ""
    has_tokens = observation.token_key is not None
    why = why_dedicated(spec, has_tokens=has_tokens, is_evicted=observation.status.pool_evicted)
    return "" if why is None else f"The run has a trainer and engines of its own: {why}."


def resolve_run(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings
) -> ResolvedRun | Problem:
    """Return the resolved spec of the current attempt, or the reason why it cannot be resolved."""
    identity = observation.identity(status.attempt)
    packages = recorded_packages(status, spec)
    frozen = frozen_config(observation, status.attempt)
    if frozen is not None:
        spec = _with_allowed_priority(_frozen_defaults(spec, frozen), settings)
        pool = _frozen_pool(observation, status, frozen, spec)
        return resolve(identity, settings, spec, frozen.model, frozen.warm_start, packages, pool)
    references = resolve_references(spec, observation, status, settings)
    if isinstance(references, Problem):
        return references
    missing = missing_pool(spec, references[0], observation)
    if missing is not None:
        return missing
    pool = wanted_pool(spec, references[0], observation, settings)
    return resolve(identity, settings, spec, *references, packages, pool)


def missing_pool(spec: RLRunSpec, model: RLModelSpec, observation: RunObservation) -> Problem | None:
    """Return the problem of a run with `driver: Client` that no shared pool can train, or None."""
    if spec.driver is not Driver.client:
        return None
    has_tokens, is_evicted = observation.token_key is not None, observation.status.pool_evicted
    if model.sharing.mode is not SharingMode.namespace:
        why = f"RLModel {model.id} has `sharing.mode` {model.sharing.mode}. Choose an RLModel with `sharing.mode` "
        why += f"{SharingMode.namespace}, or ask the platform team to set it"
    elif not model.trainer.is_shareable:
        why = f"the trainer of RLModel {model.id} has several GPUs or nodes, and is therefore not shared. Choose an "
        why += "RLModel whose trainer has one GPU"
    elif (reason := why_dedicated(spec, has_tokens=has_tokens, is_evicted=is_evicted)) is not None:
        why = f"this run cannot use a shared pool: {reason}. Correct this, and start a new run"
    else:
        return None
    message = f"A run with `spec.driver` {spec.driver} is trained by a shared pool, but {why}."
    return Problem(reason=Reason.CLIENT_NEEDS_POOL, message=message)


def _frozen_pool(observation: RunObservation, status: RLRunStatus, frozen: ResolvedRun, spec: RLRunSpec) -> str | None:
    """Return the pool in the attempt's configuration, or the pool in the status if users have changed the configured
    name.
    """
    name = frozen.endpoints.pool
    if name is None and spec.driver is not Driver.client:
        return None
    if name is not None and name == pool_named(observation.namespace, frozen.model.id, name).name:
        return name
    return None if status.pool is None else status.pool.name


def wanted_pool(
    spec: RLRunSpec, model: RLModelSpec, observation: RunObservation, settings: OperatorSettings
) -> str | None:
    """Return the name of the shared pool that an attempt uses if it starts now, or None if it gets its own engines."""
    has_tokens, is_evicted = observation.token_key is not None, observation.status.pool_evicted
    if not shares_engines(spec, model, has_tokens=has_tokens, is_evicted=is_evicted):
        return None
    return shared_pool(observation.namespace, model, settings).name


def resolved_values(resolved: ResolvedRun) -> ResolvedValues:
    """Return the values of an attempt's configuration that the status shows."""
    spec, reference = resolved.spec, resolved.spec.checkpoint_id
    trainer, inference = resolved.model.trainer, resolved.model.inference
    engines = inference.replicas if resolved.endpoints.pool is None else 0
    nodes = 0 if resolved.trains_in_pool else trainer.nodes
    return ResolvedValues(
        model_source=resolved.model.source,
        max_tokens=resolved.max_tokens,
        checkpoint_interval=spec.checkpoints.interval,
        checkpoint_id=checkpoint_id(*split_checkpoint_id(reference, resolved.run.namespace)) if reference else None,
        wandb_project=spec.wandb.project if spec.wandb else None,
        gpus=nodes * trainer.all_gpus + engines * inference.all_gpus,
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
    """Return whether the base model and the checkpoint are those that the operator resolved for the attempt.

    Users can change the ConfigMap that stores them, so its signature is verified. Returns True if the attempt has no
    readable ConfigMap, because base model and checkpoint have then just been resolved.
    """
    objects = observation.owned_children("ConfigMap", attempt=attempt)
    if not objects or readable_config(objects[0]) is None:
        return True
    return _is_signed(objects[0], observation.storage_key, observation.identity(attempt), resolved)


def _is_signed(config_map: Obj, key: bytes, identity: RunIdentity, resolved: ResolvedRun) -> bool:
    signature = sign_references(key, identity, resolved)
    # Users can change the annotation, and compare_digest accepts only ASCII in text.
    given = annotation(config_map, REFERENCES_ANNOTATION).encode(errors="replace")
    return hmac.compare_digest(given, signature.encode())


def signed_config(config_map: Obj | None, run: Obj, key: bytes) -> ResolvedRun | None:
    """Return the configuration of the run's current attempt, or None if it is missing or not signed by the operator.

    The signature covers the references to files outside the run. Users may have changed other fields.
    """
    metadata, attempt = run["metadata"], RLRunStatus.parse(run.get("status")).attempt
    resolved = None if config_map is None else attempt_config((config_map,), metadata["uid"], attempt)
    if config_map is None or resolved is None:
        return None
    identity = RunIdentity(metadata["namespace"], metadata["name"], metadata["uid"], attempt, 0)
    return resolved if _is_signed(config_map, key, identity, resolved) else None


def client_session(config: ResolvedRun, run: Obj, settings: OperatorSettings) -> SessionSpec | None:
    """Return the specification of the session of a run with `driver: Client`, or None if the run's spec is invalid.

    Users can change the configuration, so folder, identity and spec are taken from the run itself. Raises ValueError if
    the specification is too large for a `TrainerOrder`.
    """
    spec, metadata = parse_spec(run), run["metadata"]
    if isinstance(spec, Problem):
        return None
    session = session_spec(config.model_copy(update={"spec": spec}), CLIENT_MAX_STEPS, None)
    if (length := len(session.model_dump_json())) > MAX_SESSION:
        raise ValueError(f"the session's specification is {length} characters long; the maximum is {MAX_SESSION}")
    namespace, uid = metadata["namespace"], metadata["uid"]
    own = {"run_uri": str(run_layout(settings, namespace, uid).root), "run_uid": uid, "run_name": metadata["name"]}
    return session.model_copy(update={**own, "namespace": namespace})


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
