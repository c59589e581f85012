"""Protocol Buffers wire format: a reader with limits, and writers for the few messages that this program sends.

The package `protobuf` creates an object for each message in the input. Even the smallest message, two bytes of input,
takes a hundred bytes of memory. This reader yields views of the input instead, and counts fields.
"""

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
MAX_VARINT_BYTES = 10
UNSIGNED = 1 << 64
SIGN = 1 << 63

Value = int | memoryview


class WireInvalid(ValueError):
    """Raised for bytes that are not a message, or that have too many fields."""


class WireReader:
    """Reader of one message and its nested messages, which have at most `max_fields` fields in total."""

    def __init__(self, max_fields: int) -> None:
        self._max_fields = max_fields
        self._left = max_fields

    def fields(self, message: memoryview) -> Iterator[tuple[int, Value]]:
        """Yield the number and value of each field. The value is an integer, or a view of the field's bytes. Raises
        WireInvalid.
        """
        at, end = 0, len(message)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise WireInvalid(f"has more than {self._max_fields} fields. Send fewer datums in a request")
            tag, at = read_varint(message, at)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise WireInvalid("has a field with the number 0")
            if kind == VARINT:
                value, at = read_varint(message, at)
                yield number, value
                continue
            if kind == BYTES:
                size, at = read_varint(message, at)
            elif kind in FIXED_SIZES:
                size = FIXED_SIZES[kind]
            else:
                raise WireInvalid(f"has a field of the unknown wire type {kind}")
            if size > end - at:
                raise WireInvalid("ends within a field")
            yield number, message[at : at + size]
            at += size


def read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned integer at a position, and the position after it. Raises WireInvalid."""
    if at < len(message) and message[at] < 0x80:
        return message[at], at + 1
    value = shift = 0
    for index in range(at, min(at + MAX_VARINT_BYTES, len(message))):
        byte = message[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value % UNSIGNED, index + 1
        shift += 7
    raise WireInvalid("ends within a number, or has a number of more than 64 bits")


def signed(value: Value) -> int:
    """Return an integer field as a signed number. Raises WireInvalid."""
    if not isinstance(value, int):
        raise WireInvalid("has bytes instead of an integer")
    return value - UNSIGNED if value >= SIGN else value


def integers(value: Value, most: int) -> list[int]:
    """Return the first `most` numbers of one occurrence of a repeated integer field, packed or not. Raises WireInvalid.

    A packed number takes one byte in the input and many in memory, but does not count as a field.
    """
    if isinstance(value, int):
        return [signed(value)]
    found, at = list[int](), 0
    while at < len(value) and len(found) < most:
        number, at = read_varint(value, at)
        found.append(signed(number))
    return found


def view(value: Value) -> memoryview:
    """Return a field with bytes or a message. Raises WireInvalid."""
    if isinstance(value, int):
        raise WireInvalid("has an integer instead of bytes")
    return value


def text(value: Value) -> str:
    """Return a text field. Raises WireInvalid."""
    try:
        return bytes(view(value)).decode()
    except UnicodeDecodeError:
        raise WireInvalid("has text that is not UTF-8") from None


def double(value: Value) -> float:
    """Return a field of type double. Raises WireInvalid."""
    data = view(value)
    if len(data) != 8:
        raise WireInvalid("has another type instead of a double")
    number: float = struct.unpack("<d", data)[0]
    return number


def varint(number: int) -> bytes:
    """Return an unsigned integer as bytes."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def integer_field(number: int, value: int) -> bytes:
    """Return a field with an unsigned integer."""
    return varint(number << 3 | VARINT) + varint(value)


def double_field(number: int, value: float) -> bytes:
    """Return a field of type double."""
    return varint(number << 3 | FIXED64) + struct.pack("<d", value)


def bytes_field(number: int, value: bytes | memoryview) -> bytes:
    """Return a field with bytes, text or a message."""
    return b"".join([varint(number << 3 | BYTES), varint(len(value)), value])


def entry_field(number: int, key: str, value: bytes) -> bytes:
    """Return an entry of a map. `value` is a field with the number 2."""
    return bytes_field(number, bytes_field(1, key.encode()) + value)
