"""Requests for logs, and their responses."""

from enum import StrEnum

from pydantic import Field
from rlrun.api.base.schema import Schema
from rlrun.constants import Role

MAX_TAIL = 5000
DEFAULT_TAIL = 1000
MAX_PATTERN = 256
SINCE = r"^(\d{1,9}|\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)?)$"


class LogLevel(StrEnum):
    """Severity of a line, from the lowest to the highest."""

    debug = "DEBUG"
    info = "INFO"
    success = "SUCCESS"
    warning = "WARNING"
    error = "ERROR"
    critical = "CRITICAL"


class LogSource(StrEnum):
    """Place from which log lines are read."""

    live = "live"
    """Existing pods."""
    kept = "kept"
    """Copies in S3, made when containers exit."""


class LogQuery(Schema):
    """Parameters that select log lines."""

    role: list[Role] = Field(default_factory=list, max_length=4)
    """Role of the processes. Repeatable. Defaults to the orchestrator or, if `env` is set, to environment."""
    env: str | None = Field(default=None, min_length=1, max_length=256)
    """Name, id or last part of the id of an environment. NAME/1 is the second environment with this name."""
    attempt: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of the attempt. By default, the lines come from all existing pods or, if there are none, from the newest
    attempt with logs in S3.
    """
    previous: bool = False
    """Read the logs from before the last restart of each container."""
    tail: int = Field(default=DEFAULT_TAIL, ge=1, le=MAX_TAIL)
    """Maximum number of lines from all pods in total, after all filters. The newest lines are returned."""
    since: str | None = Field(default=None, pattern=SINCE)
    """Earliest time of the lines: a number of seconds before now (600), or a time (2026-01-31T12:00:00Z)."""
    level: LogLevel | None = None
    """Lowest level of the lines. A line without a level, such as one of a traceback, has the level of the line before
    it.
    """
    search: str | None = Field(default=None, min_length=1, max_length=MAX_PATTERN)
    """Text that lines must contain. Case is ignored."""
    regex: str | None = Field(default=None, min_length=1, max_length=MAX_PATTERN)
    """RE2 pattern that must match somewhere in a line."""


class LogLine(Schema):
    """One line of a log, and the process that wrote it."""

    time: str | None = None
    """Time at which the line was written. In a log from S3, the time that the line itself contains."""
    role: Role
    pod: str
    attempt: int
    level: LogLevel | None = None
    message: str
    """Text of the line, at most 8 KiB. It comes from programs and tenants, and may contain control characters."""


class LogProblem(Schema):
    """Pod whose log could not be read."""

    pod: str
    detail: str


class LogAnswer(Schema):
    """Log lines of a run's processes, oldest first."""

    namespace: str
    uid: str
    source: LogSource
    lines: list[LogLine]
    is_complete: bool
    """False if older lines were left out because of `tail`, or because the logs are too large."""
    problems: list[LogProblem] = Field(default_factory=list)
    """Pods whose log could not be read."""
