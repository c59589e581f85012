"""Compares versions of environment packages as defined in PEP 440."""

from collections.abc import Iterable

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version


def version_of(text: str) -> Version | None:
    """Parse a version. Returns None if the text is invalid."""
    try:
        return Version(text)
    except ValueError:
        # InvalidVersion, or a number with thousands of digits.
        return None


def admits(specifier: str, version: str) -> bool:
    """Return whether the specifier allows the version, including pre-releases. Returns True if either of them is
    invalid.
    """
    parsed = version_of(version)
    try:
        return parsed is None or SpecifierSet(specifier).contains(parsed, prereleases=True)
    except InvalidSpecifier:
        return True


def in_order(versions: Iterable[str]) -> list[str]:
    """Sort the versions, oldest first. Invalid versions come before all others."""
    parsed = {text: version_of(text) for text in versions}
    others = sorted(text for text, version in parsed.items() if version is None)
    return others + [text for _, text in sorted((version, text) for text, version in parsed.items() if version)]


def newest(versions: Iterable[str]) -> str | None:
    """Return the newest release, else the newest pre-release, or None if no version is valid."""
    ordered = [(version, text) for text in in_order(versions) if (version := version_of(text)) is not None]
    final = [text for version, text in ordered if not version.is_prerelease]
    return final[-1] if final else ordered[-1][1] if ordered else None


def matching(wanted: str, versions: Iterable[str]) -> str | None:
    """Return the version that equals `wanted`, for example `1.0.0` for `1.0`. An exact match takes
    precedence. Returns None if there is no such version.
    """
    stored = list(versions)
    version = version_of(wanted)
    if wanted in stored or version is None:
        return wanted if wanted in stored else None
    return next((text for text in in_order(stored) if version_of(text) == version), None)
