"""Versions of environment packages as S3 has them, and their order. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

VERSION = re.compile(
    r"v?(?:(\d{1,9})!)?(\d{1,9}(?:\.\d{1,9})*)(?:[._-]?(a|alpha|b|beta|c|rc|pre|preview)[._-]?(\d{0,9}))?"
    r"(?:(?:[._-]?(?:post|rev|r)[._-]?(\d{0,9}))|-(\d{1,9}))?(?:[._-]?dev[._-]?(\d{0,9}))?(?:\+([a-z0-9._-]+))?",
    re.IGNORECASE,
)
"""Version as in PEP 440."""
STAGES = {"a": 1, "alpha": 1, "b": 2, "beta": 2, "c": 3, "rc": 3, "pre": 3, "preview": 3}
FINAL = 4
Order = tuple[int, tuple[int, ...], tuple[int, int], int, int, str]


@dataclass(frozen=True)
class StoredVersion:
    """One version of a package."""

    version: str
    files: tuple[str, ...]
    """Names of its wheels."""
    size: int
    """Bytes of all files."""
    created: datetime


def order_of(text: str) -> Order | None:
    """Return the place of a version in the order of PEP 440, None if it is none."""
    match = VERSION.fullmatch(text)
    if match is None:
        return None
    epoch, release, stage, number, post, implicit, dev, local = match.groups()
    numbers = [int(part) for part in release.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    after = -1 if post is None and implicit is None else int(post or implicit or 0)
    if stage is None and after < 0 and dev is not None:
        place = (0, 0)  # a development version comes before the first pre-release
    else:
        place = (STAGES[stage.lower()] if stage else FINAL, int(number or 0))
    return int(epoch or 0), tuple(numbers), place, after, 10**9 if dev is None else int(dev or 0), local or ""


def is_prerelease(text: str) -> bool:
    """Return whether the version comes before a release."""
    order = order_of(text)
    return order is not None and (order[2][0] < FINAL or order[4] < 10**9)


def newest_first(versions: Iterable[StoredVersion]) -> list[StoredVersion]:
    """Return the versions with wheels in the order of PEP 440. Names that are no versions come last."""
    complete = [version for version in versions if version.files]
    return sorted(
        complete, key=lambda each: (order_of(each.version) is not None, order_of(each.version) or ()), reverse=True
    )


def latest(versions: Iterable[StoredVersion]) -> StoredVersion | None:
    """Return the version that a run gets which names none: a pre-release only if there is no other."""
    ordered = [version for version in newest_first(versions) if order_of(version.version) is not None]
    return next((each for each in ordered if not is_prerelease(each.version)), ordered[0] if ordered else None)
