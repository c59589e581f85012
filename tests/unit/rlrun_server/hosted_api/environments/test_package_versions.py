"""Versions of packages with their files."""

from datetime import UTC, datetime

from rlrun_server.hosted_api.environments.package_versions import StoredVersion, find_version, latest, newest_first


def stored(version: str, *files: str) -> StoredVersion:
    return StoredVersion(version, files or ("a.whl",), 1, datetime(2026, 1, 1, tzinfo=UTC))


EMPTY = StoredVersion("9.0", (), 0, datetime(2026, 1, 1, tzinfo=UTC))


def test_folders_without_wheels_are_no_versions() -> None:
    versions = [EMPTY, stored("odd name"), stored("1.0"), stored("0.9"), stored("1.10rc1")]
    assert [each.version for each in newest_first(versions)] == ["1.10rc1", "1.0", "0.9", "odd name"]
    newest = latest(versions)
    assert newest is not None
    assert newest.version == "1.0"
    assert latest([EMPTY, stored("odd name")]) is None
    assert find_version("9.0", versions) is None
    found = find_version("v1.0.0", versions)
    assert found is not None
    assert found.version == "1.0"
