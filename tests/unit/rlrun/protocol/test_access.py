import pytest
from rlrun.protocol.access import bearer, is_allowed


@pytest.mark.parametrize(
    ("path", "headers", "token", "allowed"),
    [
        ("/status", bearer("secret"), "secret", True),
        ("/status", {}, "secret", False),
        ("/status", bearer("other"), "secret", False),
        ("/status", {"Authorization": "secret"}, "secret", False),
        ("/status", {"Authorization": "Basic secret"}, "secret", False),
        ("/status", {"Authorization": "Bearer secret\udcff"}, "secret", False),
        ("/healthz", {}, "secret", True),
        ("/readyz", {}, "secret", True),
        ("/metrics", {}, "secret", True),
        ("/metrics/x", {}, "secret", False),
        ("/status", {}, None, True),
        ("/status", {}, "", True),
    ],
)
def test_requests_that_may_pass(path: str, headers: dict[str, str], token: str | None, allowed: bool) -> None:
    assert is_allowed(path, headers, token) is allowed


def test_without_a_token_there_is_no_header() -> None:
    assert bearer(None) == bearer("") == {}
