"""Errors that end a command, each with a message and usually a next step.

One function converts every API server error to a `CliError`, so that the same rejection has the same text in every
command and users see no traceback.
"""

import re

import typer
from rlrun.kube.errors import ApiError

FAILED = 1
"""Exit code for a failure of the cluster, the network, S3 or the run."""
INVALID = 2
"""Exit code for an invalid command line or file. Nothing was changed."""

INVISIBLE = (
    0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010),
    *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0x3164, 0xFEFF, 0xFFA0, *range(0xFFF0, 0xFFFC),
    *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000),
)  # fmt: skip
"""Characters that have no width or reorder text, which can make one name look like another."""
ESCAPES = {code: f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}" for code in INVISIBLE}
"""Table for `str.translate` that makes invisible characters visible."""
CONTROL_CHARACTERS = {**dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)]), **ESCAPES}
"""Table for `str.translate` that removes control characters and makes invisible ones visible."""
SEQUENCES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]+[0-~]")
"""Escape sequences for colors, cursor movements, titles and links."""


class CliError(Exception):
    """Failure of a command: message, hint with the next step, details and exit code."""

    def __init__(self, message: str, hint: str | None = None, *, code: int = FAILED, details: list[str] | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.details = details or []


def show_error(problem: CliError) -> None:
    """Print `Error: ...`, the details as a list, and `Next: ...` to standard error. Uses colors only on a terminal."""
    typer.echo(typer.style("Error: ", fg="red", bold=True) + without_controls(problem.message), err=True)
    for line in problem.details:
        typer.echo(f"  - {without_controls(line)}", err=True)
    if problem.hint:
        typer.echo(typer.style("Next:  ", bold=True) + without_controls(problem.hint), err=True)


def without_controls(text: str) -> str:
    """Return the text without terminal control characters and sequences."""
    return SEQUENCES.sub("", text).translate(CONTROL_CHARACTERS)


class NotFoundError(CliError):
    """Error for an object that does not exist, or whose kind the cluster does not know."""


class UnreachableError(CliError):
    """Error for an API server that does not respond, or that is overloaded or starting."""


class NotReadyError(CliError):
    """Error for a container that has no log yet (status 400 for a log request)."""


class ConflictError(CliError):
    """Error for an object whose name is already in use."""


def invalid_fields(error: ApiError) -> list[str]:
    """Return the distinct `field: message` lines of the API server's response."""
    lines: list[str] = []
    for cause in error.details.get("causes") or []:
        field = cause.get("field") or ""
        message = str(cause.get("message") or cause.get("reason") or "").strip()
        text = f"{field}: {message}" if field and field != "<nil>" else message
        if text and text not in lines:
            lines.append(text)
    return lines


def to_cli_error(error: ApiError) -> CliError:
    """Convert an API server error to a CliError."""
    action = error.action
    is_status = error.reason != str(error.status)
    reply = error.message.strip() if is_status and error.message else f"the API server returned status {error.status}"
    if error.is_unanswered:
        return UnreachableError(
            f"cannot {action}: {reply}",
            "check that the cluster is running and that --kubeconfig and --context select the right one",
        )
    match error.status:
        case 400 if "waiting to start" in reply or "not available" in reply or "ContainerCreating" in reply:
            return NotReadyError(
                f"cannot {action}: {reply}",
                "the container has not started yet; try again, or add -f to wait",
            )
        case 401:
            return CliError(
                f"cannot {action}: the API server rejected your credentials",
                "log in again, or check --kubeconfig and --context",
            )
        case 403:
            return CliError(
                f"cannot {action}: {reply}",
                "ask for the `edit` role (or `view` for read-only access) in this namespace, or select another with -n",
            )
        case 404 if "could not find the requested resource" in reply or not error.is_object_missing:
            return NotFoundError(
                f"cannot {action}: the cluster does not know this kind of object",
                "install the rlrun chart (helm install rlrun charts/rlrun), or select another --context",
            )
        case 404:
            return not_found(action)
        case 409 if error.reason == "AlreadyExists":
            return ConflictError(
                f"cannot {action}: an object with this name already exists",
                "choose another name with --name, or delete the existing object",
            )
        case 409:
            return CliError(f"cannot {action}: the object was modified concurrently ({reply})", "try again")
        case 422:
            lines = invalid_fields(error)
            return CliError(
                f"cannot {action}: the API server rejected the object" if lines else f"cannot {action}: {reply}",
                "correct these fields and try again" if lines else "correct the object and try again",
                details=lines,
            )
        case 429 | 500 | 502 | 503 | 504:
            return UnreachableError(
                f"cannot {action}: the API server is overloaded or starting ({reply})",
                "try again in a moment",
            )
        case _:
            return CliError(f"cannot {action}: {reply}")


def not_found(action: str) -> NotFoundError:
    """Return the error for an object that does not exist."""
    return NotFoundError(
        f"cannot {action}: the object does not exist", "check the name and the namespace; list all runs: rlrun list -A"
    )
