"""Objects that the operator cannot write: refused by the API server, or because another owner has their name."""

from rlrun.constants import RUN_UID_LABEL, Reason
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj, label
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.plan.observation import RunObservation

NO_REFUSALS = frozenset({401, 404, 408, 409, 410, 429})
"""Statuses that say nothing about the object: credentials, a missing namespace, conflicts, overload."""


class ObjectRefused(ApiError):
    """Raised if an object of a run cannot be written until somebody changes something. `problem` says what."""

    def __init__(self, status: int, problem: Problem, action: str) -> None:
        super().__init__(status, problem.reason, problem.message, action=action)
        self.problem = problem


def refused(obj: Obj, error: ApiError) -> ObjectRefused | None:
    """Return the error as a refusal of the object, or None if a repetition of the request may succeed by itself."""
    if not _is_refusal(error):
        return None
    if "exceeded quota" in error.message:
        reason = Reason.QUOTA_EXCEEDED
        advice = "Ask the platform team for a larger quota, or delete runs that are not needed."
    else:
        reason = Reason.OBJECT_REFUSED
        advice = "Remove the cause that the message names, or show it to the platform team."
    message = f"The API server refused {_phrase(obj)}: {error.message.rstrip('.')}. {advice} The operator tries again."
    return ObjectRefused(error.status, Problem(reason=reason, message=message), error.action)


def name_taken(obj: Obj, existing: Obj, observation: RunObservation) -> ObjectRefused | None:
    """Return a refusal if the existing object is not this run's, so that writing would take it from its owner."""
    if label(existing, RUN_UID_LABEL) == observation.uid:
        return None
    problem = Problem(
        reason=Reason.NAME_TAKEN,
        message=f"{_phrase(obj)} exists already and does not belong to this run, which needs the name. Delete that "
        "object, or start the run under another name. The operator tries again.",
    )
    return ObjectRefused(409, problem, f"create {_phrase(obj)}")


def _is_refusal(error: ApiError) -> bool:
    if error.status == 500:
        return "webhook" in error.message
    return 400 <= error.status < 500 and error.status not in NO_REFUSALS


def _phrase(obj: Obj) -> str:
    return f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
