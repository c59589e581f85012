"""Parser for the server name in the first message of a TLS connection (RFC 8446 section 4.1.2, RFC 6066 section 3).

The name must equal the host that the client requested; otherwise a client could reach another host behind the same
front end. A message with an Encrypted ClientHello (RFC 9849) is rejected, because its real server name is hidden.
Clients that send the extension with random content, as browsers do, are rejected too, because the two cannot be
distinguished.
"""

from dataclasses import dataclass

MAX_BYTES = 64 * 1024
MAX_RECORDS = 16
RECORD_HEADER = 5
HANDSHAKE_RECORD = 22
MAJOR_VERSION = 3
CLIENT_HELLO = 1
SERVER_NAME = 0
ENCRYPTED_CLIENT_HELLO = 0xFE0D
HOST_NAME = 0


class NotTlsError(ValueError):
    """Raised for bytes that do not start a TLS connection with a readable server name."""


class IncompleteError(Exception):
    """Raised for a message that has not arrived completely."""


@dataclass
class _Reader:
    data: bytes
    position: int = 0

    def take(self, count: int) -> bytes:
        data = self.data[self.position : self.position + count]
        if len(data) < count:
            raise IncompleteError
        self.position += count
        return data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> "_Reader":
        """Read a vector whose length is encoded in `size` bytes."""
        return _Reader(self.take(self.number(size)))

    @property
    def ended(self) -> bool:
        return self.position >= len(self.data)


def server_name(data: bytes) -> str | None:
    """Return the server name in lower case, or None if the client sends none.

    Raises IncompleteError if the message has not arrived completely. Raises NotTlsError if the bytes are a different
    message or protocol, or if the server name may be encrypted.
    """
    message = _Reader(_handshake(data))
    if message.number(1) != CLIENT_HELLO:
        raise NotTlsError("the first TLS message is not a ClientHello")
    hello = message.vector(3)
    try:
        hello.take(2 + 32)  # version, random
        hello.vector(1)  # session id
        hello.vector(2)  # cipher suites
        hello.vector(1)  # compression methods
        if hello.ended:
            return None
        extensions = _extensions(hello.vector(2))
        names = extensions.get(SERVER_NAME)
        name = None if names is None else _host_name(names.vector(2))
    except (IncompleteError, UnicodeError) as error:
        raise NotTlsError("the ClientHello is damaged") from error
    if ENCRYPTED_CLIENT_HELLO in extensions:
        raise NotTlsError(
            "the client sends an Encrypted ClientHello (ECH), which may hide another server; disable ECH in the client"
        )
    return name


def _extensions(block: _Reader) -> dict[int, _Reader]:
    found: dict[int, _Reader] = {}
    while not block.ended:
        kind, content = block.number(2), block.vector(2)
        if kind in found:
            raise NotTlsError("the ClientHello repeats an extension")
        found[kind] = content
    return found


def _host_name(names: _Reader) -> str | None:
    while not names.ended:
        kind, name = names.number(1), names.vector(2)
        if kind == HOST_NAME:
            return name.data.decode("ascii").lower().rstrip(".")
    return None


def record_length(header: bytes) -> int:
    """Return the length of a record's content, from a header of RECORD_HEADER bytes. Raises NotTlsError."""
    if header[0] != HANDSHAKE_RECORD or header[1] != MAJOR_VERSION:
        raise NotTlsError("the connection is not TLS")
    length = int.from_bytes(header[3:], "big")
    if not length:
        raise NotTlsError("the ClientHello has an empty record")
    return length


def _handshake(data: bytes) -> bytes:
    """Return the handshake bytes of the records received so far. A message may span several records."""
    records = _Reader(data)
    contents: list[bytes] = []
    while not records.ended:
        if len(contents) == MAX_RECORDS:
            raise NotTlsError(f"the ClientHello spans more than {MAX_RECORDS} records")
        try:
            contents.append(records.take(record_length(records.take(RECORD_HEADER))))
        except IncompleteError:
            break
    return b"".join(contents)
