"""Values as hosted clients read them. Pure.

The clients print texts through a renderer of terminal markup: a lower-case word in square brackets vanishes, and a
closing tag ends the client with a traceback. So no text of a tenant has square brackets in an answer.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

Json = dict[str, Any]


def plain(text: str) -> str:
    """Return a text without square brackets."""
    return text.replace("[", "(").replace("]", ")")


def plain_values(value: Any) -> Any:
    """Return a JSON value whose texts, also those of keys, have no square brackets."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): plain_values(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(below) for below in value]
    return value


def upper_snake(word: str) -> str:
    """Return `NOT_DEPLOYED` for `NotDeployed`."""
    return "".join(f"_{c}" if c.isupper() and at else c.upper() for at, c in enumerate(word)).upper()


def user_id_of(user: str) -> str:
    """Return 24 hexadecimal digits that identify a user, in the form of the hosted service's ids."""
    return hashlib.sha256(user.encode()).hexdigest()[:24]


def whole(value: Any) -> int | None:
    """Return the number if it is a whole one: the clients refuse others."""
    return (
        int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value) else None
    )


def json_object(body: Mapping[str, Any], status: int = 200) -> Response:
    """Return a response with a JSON object, which every successful answer but an empty 204 must have."""
    return Response(json.dumps(body, allow_nan=False), status, media_type="application/json")
