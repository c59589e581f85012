"""Errors for objects that cannot be written: the API server refuses them, or their name belongs to another owner."""

from rlrun.constants import RUN_UID_LABEL, SERVING_LABEL, Reason
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj, label
from rlrun.protocol.problem import Problem

TRANSIENT_STATUSES = frozenset({401, 404, 408, 409, 410, 429})
"""HTTP statuses of errors that the object itself does not cause: credentials, a missing namespace, conflicts, overload.
"""
OF_WEBHOOKS = ("failed calling webhook", "admission webhook ")
"""Texts that mark a 500 error as caused by an admission webhook, which failed or denied the request. Names of objects
cannot contain them, because names have no spaces.
"""
OWNER_LABELS = (RUN_UID_LABEL, SERVING_LABEL)
ARTIFACTS = ("RLCheckpoint", "RLAdapter")
REFUSED_DELETION = "The API server refused the deletion of "
"""Prefix of the message of a refused deletion."""


class ObjectRefused(ApiError):
    """Raised if an object cannot be written or deleted until a user or the platform team changes something.

    `problem` describes what to change. `subject` is how the problem's message names the object.
    """

    def __init__(self, obj: Obj, status: int, problem: Problem, action: str = "") -> None:
        self.subject = describe_object(obj)
        super().__init__(status, problem.reason, problem.message, action=action or f"write {self.subject}")
        self.kind, self.name = str(obj["kind"]), str(obj["metadata"]["name"])
        self.problem = problem

    def is_about(self, message: str) -> bool:
        """Return whether `message`, from an earlier refusal, is about the same object."""
        return f"{self.subject}: " in message or message.startswith(f"{self.subject} exists")


def find_refusal(obj: Obj, error: ApiError) -> ObjectRefused | None:
    """Convert the error to a refusal of the object, or return None if a retry may succeed."""
    if not _is_refusal(error):
        return None
    problem = explain_refusal(f"The API server refused {describe_object(obj)}", error.message)
    return ObjectRefused(obj, error.status, problem)


def find_refused_deletion(kind: str, namespace: str, name: str, error: ApiError) -> ObjectRefused | None:
    """Convert the error to a refusal of a deletion, or return None if a retry may succeed."""
    if not _is_refusal(error):
        return None
    obj = {"kind": kind, "metadata": {"namespace": namespace, "name": name}}
    problem = explain_refusal(f"{REFUSED_DELETION}{describe_object(obj)}", error.message)
    return ObjectRefused(obj, error.status, problem, error.action)


def find_other_owner(obj: Obj, existing: Obj) -> ObjectRefused | None:
    """Return a refusal if `existing`, which `obj` would overwrite, has a different owner."""
    if _has_same_owner(obj, existing):
        return None
    run = label(obj, RUN_UID_LABEL)
    advice = "Delete it if it is not needed" + (", or start the run under another name." if run else ".")
    message = f"{describe_object(obj)} already exists and has a different owner. {advice}"
    return ObjectRefused(obj, 409, Problem(reason=Reason.NAME_TAKEN, message=message))


def explain_refusal(what: str, message: str) -> Problem:
    """Return the problem that explains a refusal to the user. `what` describes the refused request, `message` is the
    API server's message.
    """
    if "exceeded quota" in message:
        reason = Reason.QUOTA_EXCEEDED
        advice = "Ask the platform team for a larger quota, or delete runs that are not needed."
    else:
        reason = Reason.OBJECT_REFUSED
        advice = "If you cannot fix this yourself, show this message to the platform team."
    return Problem(reason=reason, message=f"{what}: {message.rstrip('.')}. {advice}")


def describe_object(obj: Obj) -> str:
    """Describe the object in a message: kind, namespace and name."""
    return f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _has_same_owner(obj: Obj, existing: Obj) -> bool:
    if obj["kind"] in ARTIFACTS:
        # Users may change the labels of these objects, but not the spec.
        return bool((existing.get("spec") or {}).get("runUid") == obj["spec"]["runUid"])
    return all(label(existing, key) == label(obj, key) for key in OWNER_LABELS)


def _is_refusal(error: ApiError) -> bool:
    if error.status == 500:
        return any(part in error.message for part in OF_WEBHOOKS)
    if "because it is being terminated" in error.message:
        return False  # The namespace is being deleted, so the object would be deleted as well.
    return 400 <= error.status < 500 and error.status not in TRANSIENT_STATUSES
