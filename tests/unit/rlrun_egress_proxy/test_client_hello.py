import ssl
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun_egress_proxy.client_hello import IncompleteError, NotTlsError, server_name


def hello(name: str | None) -> bytes:
    """Return the ClientHello of OpenSSL."""
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def test_the_name_that_openssl_sends_is_read() -> None:
    assert server_name(hello("Api.Example.com")) == "api.example.com"


def test_a_connection_without_a_name_has_none() -> None:
    assert server_name(hello(None)) is None


def with_extension(data: bytes, kind: int, content: bytes) -> bytes:
    """Return the ClientHello with one more extension at its end. All lengths before it grow."""
    extension = kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content
    position = 5 + 4 + 2 + 32  # headers of record and message, version, random
    position += 1 + data[position]
    position += 2 + int.from_bytes(data[position : position + 2], "big")
    position += 1 + data[position]
    grown = bytearray(data)
    for start, size in ((3, 2), (6, 3), (position, 2)):
        length = int.from_bytes(data[start : start + size], "big") + len(extension)
        grown[start : start + size] = length.to_bytes(size, "big")
    return bytes(grown) + extension


def outer_hello() -> bytes:
    """Return the content of the extension in an outer ClientHello (RFC 9849 section 5)."""
    suite, config, key, payload = b"\x00\x01\x00\x01", b"\x07", bytes(32), bytes(208)
    return b"\x00" + suite + config + len(key).to_bytes(2, "big") + key + len(payload).to_bytes(2, "big") + payload


@pytest.mark.parametrize("content", [outer_hello(), b"\x01"], ids=["outer", "inner"])
def test_an_encrypted_client_hello_is_refused(content: bytes) -> None:
    """The allowed host is the name that is visible, the front end serves the one that is encrypted."""
    data = hello("api.example.com")
    assert server_name(with_extension(data, 0x4A4A, b"\x00")) == "api.example.com"
    with pytest.raises(NotTlsError, match="ECH"):
        server_name(with_extension(data, 0xFE0D, content))


def test_a_second_server_name_is_refused() -> None:
    name = b"hidden.example.com"
    entry = b"\x00" + len(name).to_bytes(2, "big") + name
    with pytest.raises(NotTlsError, match="repeats"):
        server_name(with_extension(hello("api.example.com"), 0, len(entry).to_bytes(2, "big") + entry))


def test_each_shorter_part_is_incomplete() -> None:
    data = hello("api.example.com")
    for length in range(len(data)):
        with pytest.raises(IncompleteError):
            server_name(data[:length])


def in_records(content: bytes, count: int) -> bytes:
    """Return a handshake message divided between this many records."""
    cuts = [len(content) * at // count for at in range(count + 1)]
    parts = [content[start:end] for start, end in pairwise(cuts)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


@pytest.mark.parametrize("count", [2, 3, 16])
def test_a_message_divided_between_records_is_read(count: int) -> None:
    assert server_name(in_records(hello("api.example.com")[5:], count)) == "api.example.com"


def test_a_message_in_many_or_empty_records_is_refused() -> None:
    content = hello("api.example.com")[5:]
    for data in (in_records(content, 17), in_records(content[:17], 17), b"\x16\x03\x01\x00\x00" * 17):
        with pytest.raises(NotTlsError):
            server_name(data)
    with pytest.raises(NotTlsError, match="empty"):
        server_name(b"\x16\x03\x01\x00\x00" + hello("api.example.com"))


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", b"\x17\x03\x03\x00\x01x", b"\x16\x02\x00\x00\x01x"]
)
def test_other_protocols_are_refused(data: bytes) -> None:
    with pytest.raises(NotTlsError):
        server_name(data)


@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_damaged_messages_are_refused_or_read(position: int, value: int) -> None:
    data = bytearray(hello("api.example.com"))
    data[position % len(data)] = value
    try:
        found = server_name(bytes(data))
    except (IncompleteError, NotTlsError):
        return
    assert found is None or isinstance(found, str)


@given(st.binary(max_size=600))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        server_name(data)
    except (IncompleteError, NotTlsError):
        return
