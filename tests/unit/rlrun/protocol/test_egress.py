from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.protocol.egress import Destination, EgressGrant, GrantError, is_listed, sign, verify

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY, NEXT_KEY = b"k" * 32, b"n" * 32
GRANT = EgressGrant(
    namespace="team",
    run="judge",
    uid="u",
    environment="env-0",
    hosts=["api.example.com"],
    expires=NOW + timedelta(days=1),
)


@pytest.mark.parametrize(
    ("listed", "destination", "allowed"),
    [
        ("api.example.com", "api.example.com:443", True),
        ("api.example.com", "API.example.com.:443", True),
        ("api.example.com", "api.example.com:8443", False),
        ("api.example.com:8443", "api.example.com:8443", True),
        ("api.example.com", "api.example.com.evil.org:443", False),
        ("api.example.com", "xapi.example.com:443", False),
        ("*.example.com", "api.example.com:443", True),
        ("*.example.com", "a.b.example.com:443", True),
        ("*.example.com", "example.com:443", False),
        ("*.example.com", "notexample.com:443", False),
        ("*.example.com", "*.api.example.com:443", True),
        ("*.example.com", "*.example.com:443", True),
        ("api.example.com", "*.example.com:443", False),
    ],
)
def test_hosts_that_a_list_stands_for(listed: str, destination: str, allowed: bool) -> None:
    assert is_listed(Destination.parse(destination), ["other.org", listed]) is allowed


@pytest.mark.parametrize("text", ["host:", "host:0", "host:65536", "host:x", "host:-1", "host:٣"])
def test_ports_are_checked(text: str) -> None:
    with pytest.raises(ValueError, match="no port"):
        Destination.parse(text)


def test_a_signed_grant_is_read_again_with_either_key() -> None:
    assert verify(sign(GRANT, KEY), [KEY], NOW) == GRANT
    assert verify(sign(GRANT, KEY), [NEXT_KEY, KEY], NOW) == GRANT


def test_a_grant_of_another_key_and_an_expired_one_are_refused() -> None:
    with pytest.raises(GrantError, match="not signed by this platform"):
        verify(sign(GRANT, KEY), [NEXT_KEY], NOW)
    with pytest.raises(GrantError, match="not signed"):
        verify(sign(GRANT, KEY), [], NOW)
    with pytest.raises(GrantError, match="expired"):
        verify(sign(GRANT, KEY), [KEY], GRANT.expires)


def test_a_changed_payload_is_refused() -> None:
    wide = GRANT.model_copy(update={"hosts": ["*.org"]})
    forged = sign(wide, NEXT_KEY).partition(".")[0] + "." + sign(GRANT, KEY).partition(".")[2]
    with pytest.raises(GrantError):
        verify(forged, [KEY], NOW)


@given(text=st.text(max_size=200))
def test_no_other_text_is_a_grant(text: str) -> None:
    with pytest.raises(GrantError):
        verify(text, [KEY], NOW)


@given(position=st.integers(0, 10_000), change=st.integers(1, 255))
def test_no_changed_byte_is_accepted(position: int, change: int) -> None:
    data = bytearray(sign(GRANT, KEY).encode())
    data[position % len(data)] ^= change
    text = data.decode("latin-1")
    try:
        found = verify(text, [KEY], NOW)
    except GrantError:
        return
    # The last character of base64 has unused bits, so another text may have the same signature.
    assert found == GRANT


def test_the_key_is_not_in_the_text() -> None:
    assert KEY.decode() not in sign(GRANT, KEY)
