"""Requests for logs, and their answers."""

from enum import StrEnum

from pydantic import Field
from rlrun.api.base.schema import Schema
from rlrun.constants import Role

MAX_TAIL = 5000
DEFAULT_TAIL = 1000
MAX_PATTERN = 256
SINCE = r"^(\d{1,9}|\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)?)$"


class LogLevel(StrEnum):
    """Levels of lines, in this order."""

    debug = "DEBUG"
    info = "INFO"
    success = "SUCCESS"
    warning = "WARNING"
    error = "ERROR"
    critical = "CRITICAL"


class LogSource(StrEnum):
    """Source of lines."""

    live = "live"
    """Pods that exist."""
    kept = "kept"
    """Copies in S3, which are made when containers end."""


class LogQuery(Schema):
    """Selection of lines."""

    role: list[Role] = Field(default_factory=list, max_length=4)
    """Processes. Repeatable. Default: the orchestrator, and with `env` the environments."""
    env: str | None = Field(default=None, min_length=1, max_length=256)
    """Name, id or last part of the id of an environment; NAME/1 is the second one of this name."""
    attempt: int | None = Field(default=None, ge=1, le=1_000_000)
    """Attempt. Default: the newest one that has logs."""
    previous: bool = False
    """Logs of the containers before their last restart."""
    tail: int = Field(default=DEFAULT_TAIL, ge=1, le=MAX_TAIL)
    """Most lines, of all pods together and after all filters. The newest ones are returned."""
    since: str | None = Field(default=None, pattern=SINCE)
    """Lines of the last seconds (600), or since a time (2026-01-31T12:00:00Z)."""
    level: LogLevel | None = None
    """Lines of this level or a higher one. A line without a level, such as one of a traceback, has that of the line
    before it."""
    search: str | None = Field(default=None, min_length=1, max_length=MAX_PATTERN)
    """Text that lines have, in small or capital letters."""
    regex: str | None = Field(default=None, min_length=1, max_length=MAX_PATTERN)
    """RE2 pattern that lines match somewhere."""


class LogLine(Schema):
    """One line."""

    time: str | None = None
    """Time at which it was written; of a kept log the time that the line itself has."""
    role: Role
    pod: str
    attempt: int
    level: LogLevel | None = None
    message: str
    """Text, at most 8 KiB of it. Programs and tenants write it, and it may have control characters."""


class LogProblem(Schema):
    """Pod whose log could not be read."""

    pod: str
    detail: str


class LogAnswer(Schema):
    """Lines of a run's processes, oldest first."""

    namespace: str
    uid: str
    source: LogSource
    lines: list[LogLine]
    is_complete: bool
    """False if older lines were left out, by `tail` or because they are too many or too long."""
    problems: list[LogProblem] = Field(default_factory=list)
    """Pods whose log could not be read."""
