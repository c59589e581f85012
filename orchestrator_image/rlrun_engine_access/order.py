"""File with the list of runs that may use the engine of a shared pool (`PoolOrder`). The sidecar writes the file (see
`rlrun.protocol.shared_pool`).
"""

import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 1024**2
"""Maximum size of the file in bytes. A larger file is truncated, and therefore invalid."""
MAX_RUNS = 64
MAX_REQUESTS = 65_536
BEARER = b"Bearer "
_UID = re.compile(r"[0-9A-Za-z-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class OrderInvalid(ValueError):
    """Raised if the file is missing or is not a valid list of runs. No run may then use the engine."""


@dataclass(frozen=True)
class RunEntry:
    """Entry of a run in the list."""

    uid: str
    token_digest: str
    """SHA-256 of the run's token in hexadecimal."""
    max_requests: int
    """Maximum number of sequences that the run may have in the engine."""


@dataclass(frozen=True)
class OrderContent:
    """Complete list of the pool's runs."""

    base: str
    """Id of the base model."""
    runs: tuple[RunEntry, ...]

    def run_with(self, authorizations: Iterable[bytes]) -> RunEntry | None:
        """Return the run whose token is in one of the Authorization headers, or None. Compares in constant time."""
        found = None
        for value in authorizations:
            digest = hashlib.sha256(value.removeprefix(BEARER)).hexdigest() if value.startswith(BEARER) else ""
            for run in self.runs:
                if hmac.compare_digest(digest, run.token_digest):
                    found = run
        return found


class OrderFile:
    """File with the list of runs, which is parsed again after each replacement."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._found: OrderContent | OrderInvalid = OrderInvalid("not read yet")

    def read(self) -> OrderContent:
        """Return the current list of runs. Returns the same object while the file is unchanged. Raises OrderInvalid."""
        try:
            if _stamp(os.stat(self._path)) != self._stamp:
                with self._path.open("rb") as file:
                    self._stamp = _stamp(os.fstat(file.fileno()))
                    self._found = _parse(file.read(MAX_BYTES))
        except OSError as error:
            self._stamp = None
            raise OrderInvalid(f"cannot read the list of runs: {error.strerror}") from None
        if isinstance(self._found, OrderInvalid):
            raise OrderInvalid(str(self._found))
        return self._found


def _stamp(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _parse(data: bytes) -> OrderContent | OrderInvalid:
    try:
        given = json.loads(data)
        base, entries = given["base"], given["runs"]
        if not isinstance(base, str) or not base or not isinstance(entries, list) or len(entries) > MAX_RUNS:
            return OrderInvalid(f"the list of runs has an invalid base model or more than {MAX_RUNS} runs")
        runs = tuple(_run(entry) for entry in entries)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return OrderInvalid(f"the list of runs is not valid: {type(error).__name__}")
    for values in ({run.uid for run in runs}, {run.token_digest for run in runs}):
        if len(values) != len(runs):
            return OrderInvalid("two runs in the list have the same uid or token")
    return OrderContent(base, runs)


def _run(entry: dict[str, Any]) -> RunEntry:
    uid, digest, limit = entry["uid"], entry["tokenDigest"], entry["maxRequests"]
    if not _UID.fullmatch(uid) or not _DIGEST.fullmatch(digest) or type(limit) is not int:
        raise ValueError
    if not 1 <= limit <= MAX_REQUESTS:
        raise ValueError
    return RunEntry(uid, digest, limit)
