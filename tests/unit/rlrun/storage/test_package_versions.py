"""Versions of packages are compared as pip compares them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from rlrun.storage.package_versions import in_order, matching, newest, version_of

TEXTS = ["1", "1.0", "1.0.0", "0.9", "1.10", "1.2", "1!0.1", "1.0rc1", "1.0.dev3", "1.0.post1", "1.0-1", "v1.5"]


@given(st.lists(st.sampled_from(TEXTS), max_size=8))
def test_versions_are_ordered_as_pip_orders_them(texts: list[str]) -> None:
    found = [Version(text) for text in in_order(texts)]
    assert found == sorted(found)
    assert in_order(["odd name", *texts])[0] == "odd name"


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["0.9.0", "0.10.0", "0.2"], "0.10.0"),
        (["1.0", "1.1rc1"], "1.0"),
        (["1.1rc1", "1.1a2"], "1.1rc1"),
        (["latest", "0.1"], "0.1"),
        (["latest"], None),
        ([], None),
    ],
)
def test_the_newest_is_a_prerelease_only_without_a_release(versions: list[str], expected: str | None) -> None:
    assert newest(versions) == expected


@pytest.mark.parametrize(
    ("wanted", "versions", "expected"),
    [
        ("1.0", ["1.0.0", "1.0.1"], "1.0.0"),
        ("1.0.0", ["1", "2"], "1"),
        ("v1.0", ["1.0.0"], "1.0.0"),
        ("1.0-RC.1", ["1.0rc1", "1.0"], "1.0rc1"),
        ("1.0", ["1.0.0", "1.0"], "1.0"),
        ("1.0", ["1.0+cpu"], None),
        ("1.1", ["1.0", "1.10"], None),
        ("odd name", ["odd name"], "odd name"),
        ("odd name", ["1.0"], None),
    ],
)
def test_a_version_is_found_in_another_spelling(wanted: str, versions: list[str], expected: str | None) -> None:
    assert matching(wanted, versions) == expected


def test_what_is_no_version() -> None:
    assert version_of("latest") is None
    assert version_of("1" * 400) is not None


def test_a_number_without_end_is_no_version() -> None:
    assert version_of("9" * 5000) is None
    assert matching("9" * 5000, ["1.0"]) is None
