"""Ids of events: how far each feed of a stream has come, so that another stream continues from there. Pure."""

import re
from collections.abc import Mapping

from rlrun_server.rest.base.problems import FieldError, RestError, invalid
from rlrun_server.rest.streams.stream_models import MAX_CURSOR

VERSION = "1"
CURSOR = re.compile(r"1(;[a-z]=[A-Za-z0-9.,:_-]*)*")


def encode_cursor(positions: Mapping[str, str]) -> str:
    """Return the id of an event. `positions`: by the letter of the feed."""
    return ";".join([VERSION, *(f"{letter}={position}" for letter, position in positions.items() if position)])


def decode_cursor(text: str, pointer: str) -> dict[str, str]:
    """Return the positions. Raises RestError for other text. `pointer` says where it comes from."""
    if not text:
        return {}
    if len(text) > MAX_CURSOR or not CURSOR.fullmatch(text):
        raise not_a_cursor(pointer)
    return dict(part.split("=", 1) for part in text.split(";")[1:])


def not_a_cursor(pointer: str) -> RestError:
    """Return the rejection of an id."""
    problem = FieldError(pointer=pointer, detail="it is not the id of an event of such a stream. Leave it out.")
    return invalid("The request is not valid.", [problem])
