"""What one object alone cannot prove: does everything exist that the run needs, and does it fit together?

Each answer is a `Problem` whose message says what to do; none of them is final, because the missing thing may appear.
"""

from dataclasses import dataclass

from pydantic import ValidationError
from rlrun.api.artifact import ArtifactPhase
from rlrun.api.checkpoint import RLCheckpoint
from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.constants import Reason
from rlrun.kube.objects import Obj
from rlrun.kube.references import find_model, split_checkpoint_id
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.plan.observation import RunObservation

ALL = "all-linear"
"""Stands for every linear layer in an RLModel's targetModules."""


@dataclass(frozen=True)
class Resolution:
    """What the spec's references stand for."""

    model: RLModelSpec
    warm_start_from: str | None = None


def parse_spec(run: Obj) -> RLRunSpec | Problem:
    """The typed spec, or everything that is wrong with it, each with its path."""
    try:
        return RLRunSpec.model_validate(run.get("spec") or {}, by_alias=True, by_name=False)
    except ValidationError as error:
        found = [f"spec.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        return Problem(reason=Reason.INVALID_SPEC, message="; ".join(found) + ". Correct these fields and apply again.")


def resolve_references(spec: RLRunSpec, seen: RunObservation) -> Resolution | Problem:
    """The first problem found, in the order in which a user would mend them."""
    model = find_model(spec.model, seen.models)
    if isinstance(model, Problem):
        return model
    problem = check_lengths(spec, model) or check_training(spec, model)
    if problem:
        return problem
    warm_start = find_warm_start(spec, seen)
    if isinstance(warm_start, Problem):
        return warm_start
    problem = check_secrets(seen) or seen.s3_problem
    if problem:
        return problem
    return Resolution(model, warm_start)


def check_lengths(spec: RLRunSpec, model: RLModelSpec) -> Problem | None:
    """The answer must leave room for a prompt."""
    if spec.sampling.max_tokens < model.seq_len:
        return None
    return Problem(
        reason=Reason.MAX_TOKENS_TOO_LARGE,
        message=f"spec.sampling.maxTokens is {spec.sampling.max_tokens}, but {model.id} has a seqLen of "
        f"{model.seq_len} tokens for prompt and answer together: set maxTokens below {model.seq_len}.",
    )


def check_training(spec: RLRunSpec, model: RLModelSpec) -> Problem | None:
    """What is trained must be what the catalogue's entry allows, and what the engines can serve."""
    wanted, allowed = spec.lora, model.lora
    if not wanted.enabled and not model.trainer.full_fine_tuning:
        return Problem(
            reason=Reason.FULL_FINE_TUNING_NOT_ALLOWED,
            message=f"spec.lora.enabled is false, but RLModel {model.id} trains adapters only: leave it out, or ask "
            "the platform team to set trainer.fullFineTuning in the RLModel.",
        )
    if wanted.rank is not None and wanted.rank > allowed.rank:
        return Problem(
            reason=Reason.LORA_RANK_TOO_HIGH,
            message=f"spec.lora.rank is {wanted.rank}, but {model.id} is served with adapters of rank {allowed.rank} "
            f"at most: set it to {allowed.rank} or lower.",
        )
    unknown = [target for target in wanted.target_modules if target not in allowed.target_modules]
    if unknown and ALL not in allowed.target_modules:
        return Problem(
            reason=Reason.LORA_TARGETS_UNKNOWN,
            message=f"spec.lora.targetModules: {', '.join(unknown)} cannot be trained in {model.id}; choose among "
            f"{', '.join(allowed.target_modules)}.",
        )
    return None


def find_warm_start(spec: RLRunSpec, seen: RunObservation) -> str | Problem | None:
    """The uri of the checkpoint to start from; None for a run that starts fresh."""
    if spec.checkpoint_id is None:
        return None
    namespace, name = split_checkpoint_id(spec.checkpoint_id, seen.namespace)
    what = f"spec.checkpointId: RLCheckpoint {namespace}/{name}"
    if seen.warm_start is None:
        return Problem(
            reason=Reason.CHECKPOINT_NOT_FOUND,
            message=f"{what} does not exist: `kubectl get rlcheckpoints -n {namespace}` lists those that do.",
        )
    try:
        checkpoint = RLCheckpoint.from_object(seen.warm_start)
    except ValidationError:
        return Problem(reason=Reason.CHECKPOINT_NOT_READY, message=f"{what} is not a valid object: choose another one.")
    if namespace != seen.namespace and seen.namespace not in checkpoint.spec.shared_with:
        return Problem(
            reason=Reason.CHECKPOINT_NOT_SHARED,
            message=f"{what} is not shared with namespace {seen.namespace}: its owner adds {seen.namespace} to its "
            "spec.sharedWith.",
        )
    if checkpoint.status.phase is not ArtifactPhase.ready:
        return Problem(
            reason=Reason.CHECKPOINT_NOT_READY,
            message=f"{what} is {checkpoint.status.phase or 'Pending'}, not Ready"
            f"{f' ({checkpoint.status.message})' if checkpoint.status.message else ''}: wait for its upload, or choose "
            "another one.",
        )
    if seen.warm_start_problem:
        return Problem(
            reason=Reason.CHECKPOINT_INCOMPLETE,
            message=f"{what} cannot be started from, {seen.warm_start_problem}: choose another one.",
        )
    if checkpoint.spec.model != spec.model:
        return Problem(
            reason=Reason.CHECKPOINT_MODEL_MISMATCH,
            message=f"{what} was trained from {checkpoint.spec.model}, this run trains {spec.model}: choose a "
            "checkpoint of the same model.",
        )
    return checkpoint.spec.uri


def check_secrets(seen: RunObservation) -> Problem | None:
    """The Secrets of envFrom."""
    if not seen.missing_secrets:
        return None
    names = ", ".join(seen.missing_secrets)
    return Problem(
        reason=Reason.SECRETS_MISSING,
        message=f"spec.envFrom: Secret {names} is not in namespace {seen.namespace}: create it with `kubectl create "
        f"secret generic {seen.missing_secrets[0]} -n {seen.namespace} --from-literal=NAME=value`.",
    )
