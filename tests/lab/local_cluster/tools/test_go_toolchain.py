"""Choice of the Go toolchain."""

import pytest

from local_cluster.tools.go_toolchain import parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [("go version go1.26.8 linux/amd64", (1, 26)), ("go version go1.9 linux/amd64", (1, 9)), ("not found", (0, 0))],
)
def test_go_version(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version
