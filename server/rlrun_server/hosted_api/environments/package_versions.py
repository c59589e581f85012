"""Versions of environment packages as S3 has them, and their order. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from rlrun.storage import package_versions


@dataclass(frozen=True)
class StoredVersion:
    """One version of a package."""

    version: str
    files: tuple[str, ...]
    """Names of its wheels."""
    size: int
    """Bytes of all files."""
    created: datetime


def newest_first(versions: Iterable[StoredVersion]) -> list[StoredVersion]:
    """Return the versions with wheels in the order of PEP 440. Names that are no versions come last."""
    complete = _complete(versions)
    return [complete[text] for text in reversed(package_versions.in_order(complete))]


def latest(versions: Iterable[StoredVersion]) -> StoredVersion | None:
    """Return the version that a run gets which names none: a pre-release only if there is no other."""
    complete = _complete(versions)
    text = package_versions.newest(complete)
    return complete[text] if text is not None else None


def find_version(wanted: str, versions: Iterable[StoredVersion]) -> StoredVersion | None:
    """Return the version that a run gets which names this one, as `1.0` names 1.0.0."""
    complete = _complete(versions)
    text = package_versions.matching(wanted, complete)
    return complete[text] if text is not None else None


def _complete(versions: Iterable[StoredVersion]) -> dict[str, StoredVersion]:
    return {each.version: each for each in versions if each.files}
