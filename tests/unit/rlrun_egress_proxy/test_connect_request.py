import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.protocol.egress import Destination
from rlrun_egress_proxy.connect_request import EgressRefused, parse_request


def head(line: str = "CONNECT api.example.com:443 HTTP/1.1", credentials: str = "rlrun:grant") -> bytes:
    encoded = base64.b64encode(credentials.encode()).decode()
    return f"{line}\r\nHost: x\r\nProxy-Authorization: Basic {encoded}\r\n\r\n".encode()


def test_destination_and_grant_are_read() -> None:
    request = parse_request(head())
    assert (request.destination, request.grant) == (Destination("api.example.com", 443), "grant")


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head("GET http://api.example.com/ HTTP/1.1"), 405),
        (head("CONNECT api.example.com HTTP/1.1"), 400),
        (head("CONNECT api.example.com:99999 HTTP/1.1"), 400),
        (head("CONNECT *.example.com:443 HTTP/1.1"), 400),
        (head("CONNECT :443 HTTP/1.1"), 400),
        (head("CONNECT api.example.com:443 HTTP/2"), 400),
        (head("CONNECT  api.example.com:443 HTTP/1.1"), 400),
        (b"\x16\x03\x01\xff\r\n\r\n", 400),
        (b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n", 407),
        (head(credentials="other:grant"), 407),
        (head(credentials="rlrun:"), 407),
        (b"CONNECT a.example.com:443 HTTP/1.1\r\nProxy-Authorization: Basic !!\r\n\r\n", 407),
        (b"CONNECT a.example.com:443 HTTP/1.1\r\nProxy-Authorization: Bearer x\r\n\r\n", 407),
    ],
)
def test_other_requests_are_refused(request_head: bytes, status: int) -> None:
    with pytest.raises(EgressRefused) as error:
        parse_request(request_head)
    assert error.value.status == status
    response = error.value.response().decode()
    assert response.startswith(f"HTTP/1.1 {status} ")
    assert json.loads(response.partition("\r\n\r\n")[2])["message"] == error.value.message
    assert ("Proxy-Authenticate: Basic" in response) is (status == 407)


def test_two_credentials_are_refused() -> None:
    twice = head().replace(b"Host: x", head().split(b"\r\n")[2])
    with pytest.raises(EgressRefused) as error:
        parse_request(twice)
    assert error.value.status == 407


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    try:
        parse_request(data)
    except EgressRefused as error:
        assert b"\r\n\r\n" in error.response()  # noqa: PT017
