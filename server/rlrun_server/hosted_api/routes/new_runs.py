"""Converts requests to the hosted API that create runs to Kubernetes objects."""

import base64
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError
from rlrun.api.base.field_errors import FieldProblem, problems
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.client_requests import ClientRun, RequestProblem, read_request
from rlrun.api.toml.dedicated_requests import DedicatedRun, read_new_run, read_resume
from rlrun.constants import (
    API_VERSION,
    CLI_FIELD_MANAGER,
    EARLIER_STEPS_ANNOTATION,
    MANAGED_BY_LABEL,
    RUN_LABEL,
    USER_ANNOTATION,
    Reason,
)
from rlrun.kube.objects import Obj, annotation, is_client_run
from rlrun.kube.references import split_checkpoint_id

from rlrun_server.hosted_api.base.errors import FieldProblems
from rlrun_server.hosted_api.objects.run_objects import is_paused, phase_of, status_of
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.objects.run_bodies import base_name, read_object
from rlrun_server.rest.objects.summaries import ArtifactSummary

MAX_BASE = 24
"""Maximum length of a name before its random suffix, because longer ids leave no space for other columns in the
clients' tables.
"""
SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of random suffixes, without vowels to avoid words."""
SUFFIX = 5
T = TypeVar("T")


def read_client_run(body: bytes, namespace: str) -> ClientRun:
    """Return the run of a request. Raises FieldProblems with all problems, InputInvalid if the body is not JSON."""
    return _of(read_request(read_object(body), namespace))


def read_dedicated_run(body: bytes, namespace: str) -> DedicatedRun:
    """Return the run of a request for a dedicated run. Raises FieldProblems, InputInvalid."""
    return _of(read_new_run(read_object(body), namespace))


def read_variables(body: bytes) -> dict[str, str]:
    """Return the variables of a request that resumes a run. Raises FieldProblems, InputInvalid."""
    return _of(read_resume(read_object(body)))


def _of(found: T | list[RequestProblem]) -> T:
    if isinstance(found, list):
        raise FieldProblems([(problem.location, problem.message) for problem in found])
    return found


def require_paused(run: Obj) -> None:
    """Check that the run is paused, so that its newest checkpoint is final, and that an orchestrator can continue it.
    Raises RestError.
    """
    if not is_paused(run):
        state = status_of(run)
        detail = f"Run {run['metadata']['name']} is {state}. Only a run that is PAUSED can be resumed."
        raise RestError(409, Reason.INVALID_REQUEST, detail)
    if is_client_run(run):
        detail = f"Run {run['metadata']['name']} is trained by a client's program, whose next call resumes it."
        raise RestError(409, Reason.INVALID_REQUEST, detail)


def newest_checkpoint(run: Obj, checkpoints: Iterable[ArtifactSummary]) -> ArtifactSummary | None:
    """Return the checkpoint from which a paused run would continue, or None if the run has not trained a step yet.

    Raises RestError if the run has trained but has no checkpoint, because a run that continues it would start from
    scratch.
    """
    of_run = [c for c in checkpoints if c.run_uid == run["metadata"]["uid"] and c.phase not in ("Failed", "Deleting")]
    newest = max(of_run, key=lambda checkpoint: checkpoint.step, default=None)
    step = ((run.get("status") or {}).get("progress") or {}).get("step") or 0
    if newest is None and step > 0:
        detail = (
            f"Run {run['metadata']['name']} is at step {step} but has no checkpoint, so it cannot be continued. "
            f"Create a run without resumeFrom to start from scratch."
        )
        raise RestError(409, Reason.INVALID_REQUEST, detail)
    return newest


def continue_from(
    run: ClientRun, paused: Obj, checkpoint: ArtifactSummary | None, *, counts_earlier: bool = True
) -> ClientRun:
    """Return a copy of `run` that continues a paused run from `checkpoint` or, if that is None, from the checkpoint
    that the paused run itself started from. If there is none, returns `run` itself. The `max_steps` of the copy counts
    only its own steps.

    If `counts_earlier` is True, the requested `max_steps` includes the steps of the runs that the paused run continued.
    Raises FieldProblems if no step is left.
    """
    source = paused["spec"].get("checkpointId") if checkpoint is None else checkpoint.name
    if source is None:
        return run
    earlier, own = earlier_steps(paused), 0 if checkpoint is None else checkpoint.step
    done = own + (earlier if counts_earlier else 0)
    left = run.spec.max_steps - done
    if left < 1:
        message = (
            f"must be greater than {done}, the number of steps completed at the checkpoint that the run continues from"
        )
        raise FieldProblems([(("config", "max_steps"), message)])
    spec = run.spec.model_copy(update={"max_steps": left, "checkpoint_id": source})
    return replace(run, spec=spec, earlier_steps=earlier + own)


def earlier_steps(run: Obj) -> int:
    """Return the number of steps completed by the runs that this run continues, or 0 if it continues none."""
    text = annotation(run, EARLIER_STEPS_ANNOTATION)
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


def resumed_run(run: Obj, checkpoint: ArtifactSummary | None, variables: Mapping[str, str]) -> ClientRun:
    """Return the run that continues a paused run from `checkpoint`, as in `continue_from`. `variables` replace the
    variables in the paused run's own Secret. Raises FieldProblems, or RestError if the paused run breaks a rule that
    this version has added.
    """
    own = secret_name(run["metadata"]["name"])
    fields = {key: value for key, value in run["spec"].items() if key not in ("suspend", "stop")}
    fields["envFrom"] = [e for e in fields.get("envFrom") or [] if (e.get("secretRef") or {}).get("name") != own]
    try:
        spec = RLRunSpec.model_validate(fields)
    except ValidationError as error:
        cause = "; ".join(map(str, problems(error, RLRunSpec)))
        detail = f"Run {run['metadata']['name']} cannot be continued, because its spec is invalid: {cause}."
        raise RestError(409, Reason.INVALID_REQUEST, f"{detail} Create a new run.") from None
    same = ClientRun(spec, dict(variables), earlier_steps=earlier_steps(run))
    return continue_from(same, run, checkpoint, counts_earlier=False)


def continues(run: Obj, spec: RLRunSpec) -> bool:
    """Return whether `run` is active and starts from the same checkpoint as `spec`, so that no second run is needed."""
    has_ended = phase_of(run).finished or run["metadata"].get("deletionTimestamp")
    fields = run["spec"]
    is_active = not (has_ended or fields.get("suspend") or fields.get("stop"))
    return is_active and fields.get("checkpointId") == spec.checkpoint_id


def reference_problems(
    spec: RLRunSpec, namespace: str, models: Sequence[str], checkpoints: Mapping[str, ArtifactSummary]
) -> list[FieldProblem]:
    """Return the problems with a run's model and checkpoint. `checkpoints` has the namespace's checkpoints by name."""
    found = []
    if spec.model not in models:
        known = ", ".join(sorted(models)[:20]) or "none"
        found.append(FieldProblem("model", f"does not exist; models of this platform: {known}"))
    if spec.checkpoint_id is not None:
        place, name = split_checkpoint_id(spec.checkpoint_id, namespace)
        checkpoint = checkpoints.get(name)
        # The operator checks checkpoints in other namespaces, which must be shared with this one.
        if place == namespace and (why := _checkpoint_problem(checkpoint, spec.model)):
            found.append(FieldProblem("checkpoint_id", why))
    return found


def _checkpoint_problem(checkpoint: ArtifactSummary | None, model: str) -> str:
    if checkpoint is None:
        return "does not exist in your team; the `checkpoints` command lists them"
    if checkpoint.phase != "Ready":
        return f"is {checkpoint.phase.upper()}, not READY"
    return "" if checkpoint.model == model else f"belongs to a different model, {checkpoint.model}"


def run_name(spec: RLRunSpec, suffix: str | None = None) -> str:
    """Return a name made from the run's display name, or else from the name of its first environment or its model, with
    `suffix` or a random suffix.
    """
    base = base_name(spec.name or next((entry.effective_name for entry in spec.env), spec.model))[:MAX_BASE].rstrip("-")
    return f"{base}-{suffix or ''.join(secrets.choice(SUFFIX_LETTERS) for _ in range(SUFFIX))}"


def resumed_name(paused: Obj, spec: RLRunSpec) -> str:
    """Return the name of the run that continues a paused run. A repeated request gets the same name."""
    digest = hashlib.sha256(f"{paused['metadata']['uid']}\n{spec.checkpoint_id}".encode()).digest()
    return run_name(spec, "".join(SUFFIX_LETTERS[byte % len(SUFFIX_LETTERS)] for byte in digest[:SUFFIX]))


def run_object(run: ClientRun, name: str, namespace: str, user: str) -> Obj:
    """Return the RLRun to create."""
    spec: dict[str, Any] = run.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if run.secrets:
        spec["envFrom"] = [*spec.get("envFrom", []), {"secretRef": {"name": secret_name(name)}}]
    annotations = {USER_ANNOTATION: user}
    if run.earlier_steps:
        annotations[EARLIER_STEPS_ANNOTATION] = str(run.earlier_steps)
    return {
        "apiVersion": API_VERSION,
        "kind": "RLRun",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": spec,
    }


def secret_name(run: str) -> str:
    """Return the name of the Secret with a run's variables. The command line uses the same name."""
    return f"{run}-env"


def secret_object(run: str, namespace: str, values: Mapping[str, str]) -> Obj:
    """Return the Secret with a run's variables. It has no owner, because it must exist before the run."""
    labels = {RUN_LABEL: run, MANAGED_BY_LABEL: CLI_FIELD_MANAGER}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(run), "namespace": namespace, "labels": labels},
        "type": "Opaque",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in sorted(values.items())},
    }


def owner_patch(run: Obj) -> Obj:
    """Return the patch that makes the run the owner of its Secret, so that they are deleted together."""
    metadata = run["metadata"]
    owner = {"apiVersion": API_VERSION, "kind": "RLRun", "name": metadata["name"], "uid": metadata["uid"]}
    return {"metadata": {"ownerReferences": [owner]}}
