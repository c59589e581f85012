"""Log lines: parsing of times and levels, filters, and selection of the newest lines of several pods."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, Protocol

import re2  # type: ignore[import-untyped]
from rlrun.constants import Role

from rlrun_server.rest.logs.log_models import LogLevel, LogLine

MAX_LINE = 8 * 1024
"""Maximum number of bytes of a line that are shown."""
MAX_TEXT = 2 * 1024**2
"""Approximate maximum number of characters in a response."""
LINE_CHARACTERS = 200
"""Approximate number of characters that each line adds to a response in addition to its text."""
LEVEL_CHARACTERS = 160
"""Number of characters of a line that are searched for its level."""
SEARCHED_LINES = 50_000
"""Maximum number of lines that are searched, from the end of a log."""
PATTERN_MEMORY = 1024**2
"""Memory limit of a compiled pattern and its states, in bytes."""
LEVEL = re.compile(r"(?:^|[\s\[(|])(DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL)(?=[\s\])|:]|$)")
LEVELS = {**{level.value: level for level in LogLevel}, "WARN": LogLevel.warning, "FATAL": LogLevel.critical}
ORDER = {level: number for number, level in enumerate(LogLevel)}
WRITTEN = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:\d\d)?(?=[\s\]|]|$)")
"""Pattern of a time at the beginning of a line."""
LAST_NANOSECOND = 253_402_300_799 * 10**9
"""Last second of the year 9999 in UTC, in nanoseconds since 1970. Later times, which a negative UTC offset allows,
cannot be written in UTC.
"""


class Pattern(Protocol):
    """Compiled RE2 pattern."""

    def search(self, text: str) -> object | None:
        """Return the first match, or None."""
        ...


@dataclass(frozen=True)
class LogOrigin:
    """Container that wrote a line."""

    role: Role
    pod: str
    attempt: int
    container: str


class ParsedLine(NamedTuple):
    """Parsed line. Only lines that are returned are converted to LogLine, because there may be millions."""

    nanoseconds: int
    """Time since 1970. A line without a time has the time of the line before it, or 0 if no earlier line has one."""
    origin: LogOrigin
    time: str | None
    level: LogLevel | None
    message: str

    def to_log_line(self) -> LogLine:
        """Return the line in the API's format."""
        origin = self.origin
        return LogLine(
            time=self.time,
            role=origin.role,
            pod=origin.pod,
            attempt=origin.attempt,
            level=self.level,
            message=self.message,
        )


@dataclass(frozen=True)
class LineFilter:
    """Conditions that lines must satisfy. A field that is None matches every line."""

    since: int | None = None
    """Earliest time of a line, in nanoseconds since 1970."""
    level: LogLevel | None = None
    search: str | None = None
    """Text to search for, in lower case."""
    pattern: Pattern | None = None

    @property
    def selects(self) -> bool:
        """Return whether the filter has a condition other than the time."""
        return any(wanted is not None for wanted in (self.level, self.search, self.pattern))

    def accepts(self, line: ParsedLine, level: LogLevel | None) -> bool:
        """Return whether the line satisfies all conditions. `level` is the level of the line or, if it has none, of the
        newest line before it that has one.
        """
        if self.since is not None and line.nanoseconds < self.since:
            return False
        if self.level is not None and (level is None or ORDER[level] < ORDER[self.level]):
            return False
        if self.search is not None and self.search not in line.message.lower():
            return False
        return self.pattern is None or self.pattern.search(line.message) is not None


def compile_pattern(text: str) -> Pattern:
    """Return the compiled RE2 pattern, which matches in linear time. Raises ValueError with the cause."""
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    try:
        pattern: Pattern = re2.compile(text, options)
    except re2.error as error:
        cause = error.args[0] if error.args else ""
        raise ValueError(cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)) from None
    return pattern


def parse_lines(
    data: bytes, origin: LogOrigin, wanted: LineFilter, *, timestamps: bool, max_lines: int = SEARCHED_LINES
) -> Iterator[ParsedLine]:
    """Yield the lines that match the filter, among the last `max_lines` lines. `timestamps` is True if each line begins
    with a time that the API server added. For the filter, a line without a level inherits the level of the line before
    it.
    """
    nanoseconds, level = 0, None
    lines = data.rsplit(b"\n", max_lines + 1)
    for raw in lines[1:] if len(lines) > max_lines + 1 else lines:
        if not raw:
            continue
        # The time precedes the line and is not part of it.
        stamp, text = b"", raw
        if timestamps:
            stamp, _, text = raw.partition(b" ")
        message = text[:MAX_LINE].decode("utf-8", "replace").removesuffix("\r")
        written = _time_of(stamp.decode("ascii", "replace") if timestamps else message)
        if written is not None:
            nanoseconds = written[1]
        own = level_of(message)
        level = own or level
        line = ParsedLine(nanoseconds, origin, None if written is None else written[0], own, message)
        if wanted.accepts(line, level):
            yield line


def level_of(message: str) -> LogLevel | None:
    """Return the level at the beginning of a line, or None."""
    match = LEVEL.search(message[:LEVEL_CHARACTERS])
    return LEVELS[match[1]] if match else None


def _time_of(text: str) -> tuple[str, int] | None:
    """Return the time at the beginning of the text and its nanoseconds since 1970, or None if there is no time. A time
    without an offset is in UTC.
    """
    match = WRITTEN.match(text)
    if match is None:
        return None
    day, time, fraction, zone = match.groups()
    seconds = _seconds(f"{day}T{time}{zone or 'Z'}")
    if seconds is None:
        return None
    text = f"{day}T{time}{'.' if fraction else ''}{fraction or ''}{zone or 'Z'}"
    return text, seconds * 10**9 + int((fraction or "").ljust(9, "0"))


@lru_cache(maxsize=1024)
def _seconds(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return None


def parse_since(text: str, now: datetime) -> int | None:
    """Parse a time, or a number of seconds before now, to nanoseconds since 1970. Returns None for other text."""
    if text.isdecimal():
        return max(0, int((now.timestamp() - int(text)) * 10**9))
    time = _time_of(text.upper())
    return None if time is None else min(max(0, time[1]), LAST_NANOSECOND)


def time_text(nanoseconds: int) -> str:
    """Return a time in UTC, in whole seconds."""
    return datetime.fromtimestamp(nanoseconds // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def newest(lines: Iterable[ParsedLine], count: int) -> tuple[Sequence[ParsedLine], bool]:
    """Return the last `count` lines, and whether there were more."""
    kept: deque[ParsedLine] = deque(maxlen=count + 1)
    kept.extend(lines)
    is_cut = len(kept) > count
    if is_cut:
        kept.popleft()
    return kept, is_cut


def merge_lines(pods: Sequence[Sequence[ParsedLine]], count: int) -> tuple[list[LogLine], bool]:
    """Return the newest lines of all pods by time, at most `count`, and whether older lines were left out."""
    ordered = sorted((line for lines in pods for line in lines), key=lambda line: line.nanoseconds)
    chosen: list[LogLine] = []
    left = MAX_TEXT
    for found in reversed(ordered[-count:]):
        left -= len(found.message) + LINE_CHARACTERS
        if left < 0:
            break
        chosen.append(found.to_log_line())
    return chosen[::-1], len(chosen) < len(ordered)
