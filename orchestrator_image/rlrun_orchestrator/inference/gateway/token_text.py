"""Text of tokens, derived from their names in the tokenizer's vocabulary."""

import re
from collections.abc import Iterable
from functools import cache

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""Representation of a space in SentencePiece vocabularies."""
SPECIAL = re.compile(r"<\|[^|]*\|>|<\uff5c[^\uff5c]*\uff5c>")
"""Name of a special token that marks up answers. It is kept as is, even where DeepSeek's names contain SPACE."""
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""Name of a single byte in SentencePiece vocabularies."""


def token_text(names: Iterable[str]) -> str:
    """Return the text of consecutive tokens, by the rules of byte-level BPE and of SentencePiece.

    Characters without a rule are unchanged, such as those in names of special tokens.
    """
    data = bytearray()
    for name in names:
        byte = BYTE.fullmatch(name)
        if byte:
            data.append(int(byte[1], 16))
            continue
        if SPECIAL.fullmatch(name):
            data += name.encode("utf-8", "replace")
            continue
        for character in name.replace(SPACE, " "):
            value = _byte_values().get(character)
            data += character.encode("utf-8", "replace") if value is None else bytes([value])
    return data.decode("utf-8", "replace")


@cache
def _byte_values() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary represents."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    # Unprintable bytes are represented by characters after the first 256.
    moved = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(moved)}
