"""Every way a command can end badly, as one sentence and a next step.

Users never see a traceback for something that they or their cluster did; whatever the API server answers is turned into
a `CliError` here, in one table, so that the same refusal reads the same from every command.
"""

import json
from typing import Any

FAILED = 1
"""Exit code: the cluster, the network or the run said no."""
INVALID = 2
"""Exit code: the command line or the file is wrong; nothing was sent."""


class CliError(Exception):
    """A failure to show: what happened, what to do next, and the exit code."""

    def __init__(self, message: str, hint: str | None = None, *, code: int = FAILED, details: list[str] | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.details = details or []


class NotFoundError(CliError):
    """The named object does not exist."""


class UnreachableError(CliError):
    """No answer from the API server."""


class NotReadyError(CliError):
    """The container exists, but has not started yet (answer 400 to a log request)."""


class ConflictError(CliError):
    """An object of that name exists already."""


def causes(body: dict[str, Any]) -> list[str]:
    """The `field: message` lines of a Kubernetes Status, without repeats."""
    lines = []
    for cause in (body.get("details") or {}).get("causes") or []:
        field = cause.get("field") or ""
        message = str(cause.get("message") or cause.get("reason") or "").strip()
        text = f"{field}: {message}" if field and field != "<nil>" else message
        if text and text not in lines:
            lines.append(text)
    return lines


def explain(status: int, body: str | bytes | None, what: str) -> CliError:
    """The error for an answer of the API server.

    `what` says what was tried, as a phrase that follows "cannot": "create RLRun demo/first".
    """
    try:
        parsed = json.loads(body or "{}")
    except ValueError:
        parsed = {}
    if not isinstance(parsed, dict):
        parsed = {}
    said = str(parsed.get("message") or "").strip() or f"the API server answered {status}"
    match status:
        case 400 if "waiting to start" in said or "not available" in said or "ContainerCreating" in said:
            return NotReadyError(
                f"cannot {what}: {said}", "the container has not started yet: try again, or add -f to wait"
            )
        case 401:
            return CliError(
                f"cannot {what}: the cluster does not know you", "log in again, or check --kubeconfig/--context"
            )
        case 403:
            return CliError(
                f"cannot {what}: {said}",
                "ask for the role rlrun-editor (to look only: rlrun-viewer) in this namespace, or use another with -n",
            )
        case 404 if "could not find the requested resource" in said or not (parsed.get("details") or {}).get("name"):
            return NotFoundError(
                f"cannot {what}: this cluster has no such kind",
                "install the operator's chart first (helm install rlrun charts/rlrun), or use another --context",
            )
        case 404:
            return NotFoundError(f"cannot {what}: it does not exist", "see what there is: rlrun list -A")
        case 409 if parsed.get("reason") == "AlreadyExists":
            return ConflictError(
                f"cannot {what}: the name is taken", "choose another name with --name, or delete that one first"
            )
        case 409:
            return CliError(f"cannot {what}: it changed meanwhile ({said})", "try again")
        case 422:
            lines = causes(parsed)
            return CliError(
                f"cannot {what}: the API server refuses it" if lines else f"cannot {what}: {said}",
                "correct the fields named above and try again",
                details=lines,
            )
        case 429 | 500 | 502 | 503 | 504:
            return UnreachableError(
                f"cannot {what}: the API server is overloaded or starting ({said})", "try again in a moment"
            )
        case _:
            return CliError(f"cannot {what}: {said}")
