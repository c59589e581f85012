"""Requests with a cookie: those of the page, and those that another site lets a browser send."""

import pytest
from rlrun_server.http.cross_site import cross_site_reason, is_plain_loopback, is_sent_in_clear
from starlette.requests import Request

PAGE = {"X-Rlrun": "1", "Origin": "https://rlrun.example.com", "Sec-Fetch-Site": "same-origin"}


def request(method: str = "POST", host: str = "rlrun.example.com", scheme: str = "http", **headers: str) -> Request:
    sent = {"Host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.items()]
    return Request(
        {"type": "http", "method": method, "scheme": scheme, "path": "/", "query_string": b"", "headers": raw}
    )


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("rlrun.example.com", "https://rlrun.example.com"),
        ("rlrun.example.com", "https://RLRUN.example.com"),
        ("rlrun.example.com:443", "https://rlrun.example.com"),
        ("rlrun.example.com:8443", "https://rlrun.example.com:8443"),
        ("localhost:8080", "http://localhost:8080"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_the_page_changes_things(host: str, origin: str) -> None:
    assert cross_site_reason(request(host=host, **{**PAGE, "Origin": origin})) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"X-Rlrun": ""},
        {"X-Rlrun": "0"},
        {"Origin": "https://evil.example.com"},
        {"Origin": "https://rlrun.example.com.evil.org"},
        {"Origin": "https://rlrun.example.com:8443"},
        {"Origin": "https://rlrun.example.com@evil.org"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "https://[evil"},
        {"Origin": "https://rlrun.example.com:99999"},
        {"Origin": "file://rlrun.example.com"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": ""},
    ],
    ids=str,
)
def test_other_sites_change_nothing(changed: dict[str, str]) -> None:
    assert cross_site_reason(request(**{**PAGE, **changed}))


def test_a_form_cannot_set_the_header() -> None:
    headers = {name: value for name, value in PAGE.items() if name != "X-Rlrun"}
    assert "X-Rlrun: 1" in str(cross_site_reason(request(**headers)))


def test_programs_without_the_headers_of_browsers_need_only_the_header_of_the_page() -> None:
    assert cross_site_reason(request(**{"X-Rlrun": "1"})) is None


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_reading_needs_no_header_but_is_for_the_page(method: str) -> None:
    assert cross_site_reason(request(method)) is None
    assert cross_site_reason(request(method, **{"Sec-Fetch-Site": "same-origin"})) is None
    assert cross_site_reason(request(method, **{"Sec-Fetch-Site": "none"})) is None
    assert cross_site_reason(request(method, **{"Sec-Fetch-Site": "same-site"}))


@pytest.mark.parametrize(
    ("host", "scheme", "expected"),
    [
        ("localhost:8080", "http", True),
        ("127.0.0.1:8080", "http", True),
        ("[::1]:8080", "http", True),
        ("localhost:8443", "https", False),
        ("rlrun.example.com", "http", False),
        ("localhost.evil.org", "http", False),
        ("", "http", False),
    ],
)
def test_only_this_machine_has_cookies_without_tls(host: str, scheme: str, expected: bool) -> None:
    assert is_plain_loopback(request(host=host, scheme=scheme)) == expected


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://rlrun.example.com", True),
        ("https://rlrun.example.com", False),
        ("http://localhost:8080", False),
        ("http://[::1]:8080", False),
        ("", False),
    ],
)
def test_pages_from_the_network_need_tls(origin: str, expected: bool) -> None:
    assert is_sent_in_clear(request(Origin=origin)) == expected
