"""Every way a command can end badly, as one sentence and a next step.

Users never see a traceback for something that they or their cluster did; whatever the API server answers is turned into
a `CliError` here, in one table, so that the same refusal reads the same from every command.
"""

from rlrun.kube.errors import ApiError

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


def causes(error: ApiError) -> list[str]:
    """Return the `field: message` lines of the API server's answer, without repeats."""
    lines: list[str] = []
    for cause in error.details.get("causes") or []:
        field = cause.get("field") or ""
        message = str(cause.get("message") or cause.get("reason") or "").strip()
        text = f"{field}: {message}" if field and field != "<nil>" else message
        if text and text not in lines:
            lines.append(text)
    return lines


def explain(error: ApiError) -> CliError:
    """Return the error to show for a request that the API server rejected or did not answer."""
    what = error.action
    is_status = error.reason != str(error.status)
    said = error.message.strip() if is_status and error.message else f"the API server answered {error.status}"
    if error.is_unanswered:
        return UnreachableError(
            f"cannot {what}: {said}", "check that the cluster is up and that --kubeconfig/--context name the right one"
        )
    match error.status:
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
        case 404 if "could not find the requested resource" in said or not error.is_object_missing:
            return NotFoundError(
                f"cannot {what}: this cluster has no such kind",
                "install the operator's chart first (helm install rlrun charts/rlrun), or use another --context",
            )
        case 404:
            return not_found(what)
        case 409 if error.reason == "AlreadyExists":
            return ConflictError(
                f"cannot {what}: the name is taken", "choose another name with --name, or delete that one first"
            )
        case 409:
            return CliError(f"cannot {what}: it changed meanwhile ({said})", "try again")
        case 422:
            lines = causes(error)
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


def not_found(action: str) -> NotFoundError:
    """Return the error for an object that does not exist."""
    return NotFoundError(f"cannot {action}: it does not exist", "see what there is: rlrun list -A")
