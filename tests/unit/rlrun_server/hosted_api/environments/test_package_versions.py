"""The order of versions agrees with PEP 440."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from rlrun_server.hosted_api.environments.package_versions import StoredVersion, latest, newest_first, order_of

TEXTS = [
    "1",
    "1.0",
    "1.0.0",
    "0.9",
    "1.10",
    "1.2",
    "1!0.1",
    "1.0a1",
    "1.0b2",
    "1.0rc1",
    "1.0.dev3",
    "1.0c3",
    "1.0a1.dev2",
    "1.0.post1",
    "1.0-1",
    "1.0.post1.dev1",
    "2.0",
    "2.0rc1",
    "v1.5",
    "1.0+local",
    "1.0alpha2",
]


def stored(version: str, *files: str) -> StoredVersion:
    return StoredVersion(version, files or ("a.whl",), 1, datetime(2026, 1, 1, tzinfo=UTC))


@given(st.lists(st.sampled_from(TEXTS), min_size=2, max_size=6))
def test_versions_are_ordered_as_pip_orders_them(texts: list[str]) -> None:
    found = [Version(each.version) for each in newest_first([stored(text) for text in texts])]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(["1.0", "2.0rc1"], "1.0"), (["1.0a1", "1.0a2"], "1.0a2"), (["zzz", "0.1"], "0.1"), (["zzz"], None), ([], None)],
)
def test_a_prerelease_is_the_latest_only_without_a_release(texts: list[str], expected: str | None) -> None:
    found = latest([stored(text) for text in texts])
    assert (found.version if found else None) == expected


def test_folders_without_wheels_and_names_that_are_no_versions() -> None:
    empty = StoredVersion("9.0", (), 0, datetime(2026, 1, 1, tzinfo=UTC))
    assert [each.version for each in newest_first([empty, stored("odd name"), stored("1.0")])] == ["1.0", "odd name"]
    assert order_of("1" * 400) is None
