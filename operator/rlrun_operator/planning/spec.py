"""Validation of a run against other objects: its model, its checkpoint and its Secrets.

Each check returns a `Problem` with a remedy. No problem is final, because a missing object may be created later.
"""

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from pydantic import ValidationError
from rlrun.api.base.address_rules import AddressRules, refusal_message
from rlrun.api.base.names import snake
from rlrun.api.base.phases import ArtifactPhase
from rlrun.api.base.received import InputInvalid, check_value, to_input_invalid
from rlrun.api.base.rules import ADMITTED
from rlrun.api.checkpoint import RLCheckpoint
from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.failure_policy import YEAR
from rlrun.api.run_sections.rollouts import Sampling, SamplingOverrides
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import ConditionType, Reason
from rlrun.kube.objects import Obj
from rlrun.kube.references import find_model, split_checkpoint_id
from rlrun.protocol.environment import MAX_ARGUMENT_BYTES
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ArtifactRef
from rlrun.storage.layout import SHARED_FOLDERS

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.artifact_catalog import may_start_from
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.resources.access.egress import is_allowed
from rlrun_operator.resources.access.reserved_secrets import why_reserved, why_unusable
from rlrun_operator.resources.base.naming import token_secret_name
from rlrun_operator.resources.environment import environment_entries, wants_egress
from rlrun_operator.resources.models.model_secrets import secrets_problem
from rlrun_operator.resources.models.model_variables import run_variables
from rlrun_operator.resources.orchestrator import WANDB_KEY
from rlrun_operator.resources.platform import is_in_own_folder


def check_arguments(spec: RLRunSpec) -> Problem | None:
    """Return a problem if the arguments of an environment exceed the size limit of its process's variables."""
    for item in environment_entries(spec):
        given = {"args": item.entry.args, "taskset": item.entry.taskset, "harness": item.entry.harness}
        # The JSON text is ASCII, so a character is a byte.
        sizes = {field: len(json.dumps(value)) for field, value in given.items() if value}
        if sum(sizes.values()) <= MAX_ARGUMENT_BYTES:
            continue
        largest = max(sizes, key=lambda field: sizes[field])
        return Problem(
            reason=Reason.ENVIRONMENT_ARGS_TOO_LARGE,
            message=f"`{item.path}.{largest}` is {sizes[largest]} bytes long as JSON. The environment's args, taskset "
            f"and harness are {sum(sizes.values())} bytes in total, but at most {MAX_ARGUMENT_BYTES} bytes are "
            f"supported, because Linux limits an environment variable to 128 KiB. Put large data into the "
            "environment's package, and start a new run.",
        )
    return None


def check_packages(spec: RLRunSpec, namespace: str, settings: OperatorSettings) -> Problem | None:
    """Return a problem if the run's namespace may not use the package of an environment."""
    for item in environment_entries(spec):
        owner = item.entry.id.partition("/")[0]
        namespaces = settings.environment_owners.get(owner)
        if namespaces is None or any(fnmatchcase(namespace, pattern) for pattern in namespaces):
            continue
        return Problem(
            reason=Reason.ENVIRONMENT_NOT_ALLOWED,
            message=f"`{item.path}.id` is {item.entry.id}, but namespace {namespace} may not use the packages of "
            f"{owner}. Use another package, or ask the platform team to allow it.",
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
            "ask the platform team to install the proxy (chart value `egress.enabled`).",
        )
    if observation.egress_problem is not None:
        return observation.egress_problem
    for item in environment_entries(spec):
        for host in item.entry.egress:
            if not is_allowed(host, settings.egress, observation.egress_hosts):
                choices = ", ".join((*settings.egress.allowed, *observation.egress_hosts)) or "none"
                return Problem(
                    reason=Reason.EGRESS_NOT_ALLOWED,
                    message=f"`{item.path}.egress` lists {host}, which this platform does not allow (allowed: "
                    f"{choices}). Remove it, or ask the platform team to allow it.",
                )
    return None


MAX_SPEC = 512 * 1024
"""Maximum size in bytes of a spec that is parsed. The CRD's admission policy refuses specs above half of this size."""
MAX_KEPT = 8192
"""Maximum length of a spec that is cached in parsed form. 128 specs of this size take at most 7 MB."""
ALL = "all-linear"
"""Value in an RLModel's targetModules that allows every name but `EXPERTS`. The trainer refuses modules that it cannot
adapt.
"""
EXPERTS = "experts"
"""Target module of the routed experts. Their adapters may need ten times the memory, so an RLModel must list them."""


UNREADABLE = {
    "model": "unreadable",
    "env": [{"id": "unreadable/unreadable"}],
    "startDeadlineSeconds": YEAR,
    "stallDeadlineSeconds": YEAR,
}
"""Placeholders for fields that this version cannot read, if they are required or their default would end the run."""
LAST_EVALUATION = {"eval", "maxSteps"}
"""Fields that may extend the stall deadline after the last step. Without them, that deadline is unknown."""


def parse_spec(run: Obj) -> RLRunSpec | Problem:
    """Return the typed spec, or a problem that lists the invalid fields. The result is shared between callers and must
    not be modified.

    A run that was accepted earlier need not satisfy rules that this version has added.
    """
    spec = run.get("spec") or {}
    was_valid = bool((run.get("status") or {}).get("resolved"))
    text = json.dumps(spec)
    if len(text) <= MAX_KEPT:
        return _parse(text, was_valid)
    return check_size(spec, text) or _parse.__wrapped__(text, was_valid)


def readable_part(run: Obj) -> RLRunSpec:
    """Return the readable part of an invalid spec, with the values in `UNREADABLE` for the rest."""
    spec = run.get("spec") or {}
    large = {name for name, value in spec.items() if json_bytes(value) > MAX_KEPT}
    try:
        return _parse_without(spec, large)
    except ValidationError as error:
        return _parse_without(spec, large | {str(one["loc"][0]) for one in error.errors()})


def _parse_without(spec: Obj, unreadable: set[str]) -> RLRunSpec:
    if unreadable & LAST_EVALUATION:
        unreadable = {*unreadable, "stallDeadlineSeconds"}
    fields = {**spec, **{name: UNREADABLE.get(name) for name in unreadable}}
    return RLRunSpec.model_validate(fields, by_alias=True, by_name=False, context=ADMITTED)


def check_size(spec: Obj, text: str) -> Problem | None:
    """Return a problem if the spec is too large to parse. `text` is the spec as JSON in ASCII."""
    if len(text) <= MAX_SPEC or (size := json_bytes(spec)) <= MAX_SPEC:
        return None
    return Problem(
        reason=Reason.INVALID_SPEC,
        message=(
            f"`spec` is {size} bytes long as JSON, and `spec.{largest_field(spec)}` is its largest field. At most "
            f"{MAX_SPEC} bytes are supported. Put large data into the environment's package, and start a new run."
        ),
    )


def largest_field(spec: Obj) -> str:
    """Return the largest field of the spec, by its size as JSON."""
    return max(spec, key=lambda field: json_bytes(spec[field]))


def json_bytes(value: Any) -> int:
    """Return the size of the value as JSON in bytes."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


# Cached because a reconcile reads the spec several times. One takes 8 kB, and 0.1 ms to parse.
@lru_cache(maxsize=128)
def _parse(text: str, was_valid: bool) -> RLRunSpec | Problem:
    value = json.loads(text)
    try:
        if was_valid:
            return RLRunSpec.model_validate(value, by_alias=True, by_name=False, context=ADMITTED)
        return RLRunSpec.model_validate(check_value(value, "spec"), by_alias=True, by_name=False)
    except InputInvalid as invalid:
        return Problem(reason=Reason.INVALID_SPEC, message=f"{invalid} Correct the field and apply the run again.")
    except ValidationError as error:
        found = to_input_invalid(error, "spec")
        errors = [f"spec.{'.'.join(map(str, each.location))}: {each.message}" for each in found.faults] or [str(found)]
        return Problem(
            reason=Reason.INVALID_SPEC, message="; ".join(errors) + ". Correct these fields and apply the run again."
        )


def resolve_references(
    spec: RLRunSpec, observation: RunObservation, status: RLRunStatus, settings: OperatorSettings
) -> tuple[RLModelSpec, ArtifactRef | None] | Problem:
    """Return the model and the start checkpoint (`spec.checkpointId`), or the first problem found.

    A run that has saved a checkpoint of its own resumes from that one. Retention may then delete the start checkpoint
    (`needs_start_checkpoint`), so an unusable start checkpoint is returned as None instead of a problem.
    """
    problem = check_namespace(observation.namespace)
    if problem:
        return problem
    model = find_model(spec.model, observation.models)
    if isinstance(model, Problem):
        return model
    # Rules between fields hold for new runs only: an earlier version may have accepted this one without them.
    problem = check_sampling(spec, model) if status.resolved is None else None
    problem = problem or check_lengths(spec, model) or check_training(spec, model) or check_arguments(spec)
    if problem:
        return problem
    warm_start = find_warm_start(spec, observation, settings)
    if isinstance(warm_start, Problem):
        if status.last_checkpoint is None:
            return warm_start
        warm_start = None
    problem = (
        check_secrets(spec, observation, settings)
        or check_wandb(spec, observation)
        or check_model_secrets(model, observation, settings)
        or check_priority(spec, settings)
        or check_urls(spec, settings)
        or check_packages(spec, observation.namespace, settings)
        or check_egress(spec, observation, settings)
        or observation.s3_problem
    )
    if problem:
        return problem
    return model, warm_start


def check_namespace(namespace: str) -> Problem | None:
    """Return a problem if the namespace's folder in S3 would be a folder that all tenants share."""
    if namespace not in SHARED_FOLDERS:
        return None
    return Problem(
        reason=Reason.NAMESPACE_RESERVED,
        message=(
            f"Runs in namespace {namespace} would write to the S3 folder {namespace}, which is reserved for files that "
            f"all tenants share. Start the run in a namespace with a different name."
        ),
    )


def check_sampling(spec: RLRunSpec, model: RLModelSpec) -> Problem | None:
    """Return a problem if the run's sampling section with the overrides of an environment violates a rule of that
    section, or leaves no tokens for a prompt. The API server checks these rules only for the section itself, because
    the schemas have no rules for list items.
    """
    for overrides in _sampling_overrides(spec):
        sampling, paths = spec.sampling, dict.fromkeys(Sampling.model_fields, "spec.sampling")
        for path, section in overrides.items():
            if section is not None:
                problem = _check_max_tokens(path, section.max_tokens, model)
                if problem:
                    return problem
                sampling = section.apply_to(sampling)
                paths |= {name: path for name, value in section if value is not None}
        for rule in Sampling.spec_rules:
            if rule.is_satisfied(sampling):
                continue
            values = sampling.model_dump(mode="json", by_alias=True)
            found = [f"`{paths[snake(name)]}.{name}` is {json.dumps(values[name])}" for name in sorted(rule.reads)]
            return Problem(
                reason=Reason.INVALID_SPEC,
                message=f"{' and '.join(found)} for the same rollouts, but {rule.message}. Start a new run with one of "
                "these fields changed or removed.",
            )
    return None


def _sampling_overrides(spec: RLRunSpec) -> Iterator[dict[str, SamplingOverrides | None]]:
    """Yield the overrides of each environment by path, in the order in which they apply to the run's section."""
    for i, entry in enumerate(spec.env):
        yield {f"spec.env[{i}].sampling": entry.sampling}
    if spec.eval is not None:
        for i, exam in enumerate(spec.eval.env):
            yield {"spec.eval.sampling": spec.eval.sampling, f"spec.eval.env[{i}].sampling": exam.sampling}


def check_lengths(spec: RLRunSpec, model: RLModelSpec) -> Problem | None:
    """Return a problem if maxTokens leaves no tokens for a prompt, or the model's default is below minTokens."""
    wanted, shortest = spec.sampling.max_tokens, spec.sampling.min_tokens or 0
    if wanted is None and shortest > model.max_tokens_of_runs:
        return Problem(
            reason=Reason.INVALID_SPEC,
            message=f"`spec.sampling.minTokens` is {shortest}, but maxTokens is not set and defaults to "
            f"{model.max_tokens_of_runs} for {model.id}. Start a new run with `spec.sampling.maxTokens` of at least "
            f"{shortest}.",
        )
    limits = {"spec.sampling": wanted} | {
        f"spec.env[{i}].sampling": e.sampling.max_tokens for i, e in enumerate(spec.env) if e.sampling
    }
    problems = (_check_max_tokens(path, limit, model) for path, limit in limits.items())
    return next((problem for problem in problems if problem), None)


def _check_max_tokens(path: str, limit: int | None, model: RLModelSpec) -> Problem | None:
    if limit is None or limit < model.seq_len:
        return None
    return Problem(
        reason=Reason.MAX_TOKENS_TOO_LARGE,
        message=f"`{path}.maxTokens` is {limit}, but {model.id} has a seqLen of {model.seq_len} tokens for prompt and "
        f"completion. Set maxTokens below {model.seq_len}.",
    )


def check_training(spec: RLRunSpec, model: RLModelSpec) -> Problem | None:
    """Return a problem if the RLModel does not allow full fine-tuning, or the adapter's rank or target modules."""
    wanted, allowed = spec.lora, model.lora
    if not wanted.enabled and not model.trainer.full_fine_tuning:
        return Problem(
            reason=Reason.FULL_FINE_TUNING_NOT_ALLOWED,
            message=(
                f"`spec.lora.enabled` is false, but RLModel {model.id} allows only LoRA training. Remove the field, "
                f"or ask the platform team to set `trainer.fullFineTuning` in the RLModel."
            ),
        )
    if wanted.rank is not None and wanted.rank > allowed.rank:
        return Problem(
            reason=Reason.LORA_RANK_TOO_HIGH,
            message=f"`spec.lora.rank` is {wanted.rank}, but RLModel {model.id} allows at most {allowed.rank}. Set it "
            f"to {allowed.rank} or lower.",
        )
    unknown = [
        target
        for target in wanted.target_modules
        if target not in allowed.target_modules and (ALL not in allowed.target_modules or target == EXPERTS)
    ]
    if unknown:
        return Problem(
            reason=Reason.LORA_TARGETS_UNKNOWN,
            message=f"`spec.lora.targetModules` lists {', '.join(unknown)}, which RLModel {model.id} does not allow. "
            f"Choose from {', '.join(allowed.target_modules)}.",
        )
    return None


def find_warm_start(
    spec: RLRunSpec, observation: RunObservation, settings: OperatorSettings
) -> ArtifactRef | Problem | None:
    """Return the checkpoint to start from, or None if spec.checkpointId is unset."""
    if spec.checkpoint_id is None:
        return None
    namespace, name = split_checkpoint_id(spec.checkpoint_id, observation.namespace)
    what = f"`spec.checkpointId`: RLCheckpoint {namespace}/{name}"
    found = observation.warm_start
    if not may_start_from(found, namespace, observation.namespace):
        # Use the same message for both cases: users of one namespace must not learn what exists in another.
        return Problem(
            reason=Reason.CHECKPOINT_NOT_FOUND,
            message=f"{what} does not exist, or is not shared with namespace {observation.namespace}. Check its name, "
            f"or ask its owner to add {observation.namespace} to the RLCheckpoint's `spec.sharedWith`.",
        )
    if found is None:
        return Problem(
            reason=Reason.CHECKPOINT_NOT_FOUND,
            message=f"{what} does not exist. List checkpoints with `kubectl get rlcheckpoints -n {namespace}`.",
        )
    try:
        checkpoint = RLCheckpoint.from_object(found)
    except ValidationError:
        return Problem(
            reason=Reason.CHECKPOINT_NOT_READY, message=f"{what} does not match the schema. Choose another checkpoint."
        )
    if not is_in_own_folder(found, settings):
        return Problem(
            reason=Reason.ARTIFACT_NOT_OWNED,
            message=f"{what} has the URI {checkpoint.spec.uri}, which is not in the folder of its run. Choose a "
            "checkpoint that the operator has created.",
        )
    changed = next((c for c in checkpoint.status.conditions if c.type == ConditionType.VERIFIED), None)
    if changed is not None:
        return _unusable_checkpoint(what, Problem(reason=changed.reason, message=changed.message))
    if checkpoint.status.phase is not ArtifactPhase.ready:
        cause = f" ({checkpoint.status.message.rstrip('.')})" if checkpoint.status.message else ""
        is_lost = checkpoint.status.phase in (ArtifactPhase.failed, ArtifactPhase.deleting)
        advice = "Choose another checkpoint." if is_lost else "Wait for its upload, or choose another checkpoint."
        return Problem(
            reason=Reason.CHECKPOINT_NOT_READY,
            message=f"{what} is {checkpoint.status.phase or 'Pending'}, not Ready{cause}. {advice}",
        )
    if isinstance(observation.warm_start_digest, Problem):
        return _unusable_checkpoint(what, observation.warm_start_digest)
    if checkpoint.spec.model != spec.model:
        return Problem(
            reason=Reason.CHECKPOINT_MODEL_MISMATCH,
            message=f"{what} was trained from {checkpoint.spec.model}, but this run trains {spec.model}. Choose a "
            "checkpoint of the same model.",
        )
    return ArtifactRef(checkpoint.spec.uri, observation.warm_start_digest)


def _unusable_checkpoint(what: str, problem: Problem) -> Problem:
    message = f"{what} cannot be used ({problem.message.rstrip('.')}). Choose another checkpoint."
    return Problem(reason=problem.reason, message=message)


def check_secrets(spec: RLRunSpec, observation: RunObservation, settings: OperatorSettings) -> Problem | None:
    """Return a problem if spec.envFrom names a Secret that environments must not read, or that does not exist."""
    secrets = observation.secrets
    refs = [entry.secret_ref for entry in spec.env_from]
    for name in (ref.name for ref in refs):
        secret = secrets.get(name)
        is_own = name == token_secret_name(observation.name) or (secret is not None and secret.operator_owned)
        why = why_reserved(observation.namespace, name, settings, operator_owned=is_own)
        if why is None and secret is not None:
            why = why_unusable(name, secret, settings)
        if why:
            return Problem(
                reason=Reason.SECRET_RESERVED,
                message=(
                    f"`spec.envFrom`: environments must not read Secret {name}: {why}. Start a new run that uses a "
                    f"different Secret."
                ),
            )
    missing = [ref.name for ref in refs if ref.name not in secrets and not ref.optional]
    if not missing:
        return None
    is_one = len(missing) == 1
    names = f"Secret {missing[0]} does" if is_one else f"Secrets {', '.join(missing)} do"
    return Problem(
        reason=Reason.SECRETS_MISSING,
        message=f"`spec.envFrom`: {names} not exist in namespace {observation.namespace}. Create "
        f"{'it' if is_one else 'each'} with "
        f"`kubectl create secret generic {missing[0]} -n {observation.namespace} "
        "--from-literal=NAME=value`.",
    )


def check_wandb(spec: RLRunSpec, observation: RunObservation) -> Problem | None:
    """Return a problem if the run logs to Weights & Biases and no Secret in spec.envFrom has the API key."""
    namespace, names = observation.namespace, [entry.secret_ref.name for entry in spec.env_from]
    secrets = [observation.secrets[name] for name in names if name in observation.secrets]
    if spec.wandb is None or spec.wandb.offline or any(WANDB_KEY in s.keys - s.empty_keys for s in secrets):
        return None
    if names:
        remedy = f"Add the entry to one of them: `kubectl edit secret {names[-1]} -n {namespace}`"
    else:
        remedy = (
            f"Create one with `kubectl create secret generic wandb -n {namespace} --from-literal={WANDB_KEY}=KEY`, and "
            "start a new run that lists it in `spec.envFrom`"
        )
    return Problem(
        reason=Reason.WANDB_KEY_MISSING,
        message=f"`spec.wandb` needs an API key, but no Secret in `spec.envFrom` ({', '.join(names) or 'empty'}) has "
        f"an entry {WANDB_KEY}. {remedy}. Alternatively, `rlrun run FILE -e {WANDB_KEY}` starts a run with a Secret "
        "for the key, and a run with `spec.wandb.offline` needs no key.",
    )


def check_model_secrets(model: RLModelSpec, observation: RunObservation, settings: OperatorSettings) -> Problem | None:
    """Return a problem if the RLModel names a Secret that is reserved, or a Secret or key that does not exist."""
    return secrets_problem(
        model,
        run_variables(model),
        observation.secrets,
        settings,
        namespace=observation.namespace,
        token_secret=token_secret_name(observation.name),
    )


def check_priority(spec: RLRunSpec, settings: OperatorSettings) -> Problem | None:
    """Return a problem if runs may not use the PriorityClass in the spec."""
    name, allowed = spec.priority_class_name, settings.priority_classes
    if name is None or any(fnmatchcase(name, pattern) for pattern in allowed):
        return None
    choice = f"Choose from {', '.join(allowed)}" if allowed else "Remove the field"
    return Problem(
        reason=Reason.PRIORITY_CLASS_NOT_ALLOWED,
        message=f"`spec.priorityClassName` is {name}, which this platform does not allow for runs. {choice}, or ask "
        "the platform team to allow it.",
    )


def check_urls(spec: RLRunSpec, settings: OperatorSettings) -> Problem | None:
    """Return a problem if the scheme or host of the teacher's URL is not allowed. The IP addresses of the host are
    checked later, by the processes that connect to it.
    """
    teacher = spec.algorithm.teacher
    if teacher is None:
        return None
    why = AddressRules.parse(settings.private_addresses).url_refusal(teacher.url)
    if why is None:
        return None
    return Problem(reason=Reason.ADDRESS_NOT_ALLOWED, message=refusal_message("spec.algorithm.teacher.url", why))
