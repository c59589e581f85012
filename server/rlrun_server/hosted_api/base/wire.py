"""Values in the format of the hosted API.

Its clients render texts as terminal markup: a lower-case word in square brackets disappears, and a closing tag crashes
the client. Texts of tenants are therefore sent without square brackets.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from starlette.responses import Response

from rlrun_server.rest.metrics.metric_columns import MAX_STEP

Json = dict[str, Any]


def plain(text: str) -> str:
    """Replace square brackets with parentheses, because the clients would interpret them as markup."""
    return text.replace("[", "(").replace("]", ")")


def plain_values(value: Any) -> Any:
    """Replace square brackets with parentheses in all texts and keys of a JSON value."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): plain_values(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(below) for below in value]
    return value


def upper_snake(word: str) -> str:
    """Convert a word from camel case to upper snake case, for example `NotDeployed` to `NOT_DEPLOYED`."""
    return "".join(f"_{c}" if c.isupper() and at else c.upper() for at, c in enumerate(word)).upper()


def user_id_of(user: str) -> str:
    """Return 24 hexadecimal digits that identify a user, in the format of the hosted service's ids."""
    return hashlib.sha256(user.encode()).hexdigest()[:24]


def whole(value: Any) -> int | None:
    """Return the value as an integer, or None if it is not a whole number. The clients reject fractions."""
    return (
        int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value) else None
    )


def json_object(body: Mapping[str, Any], status: int = 200) -> Response:
    """Return a response with a JSON object, which every successful response except 204 must contain."""
    return Response(json.dumps(body, allow_nan=False), status, media_type="application/json")


MAX_NUMBER = 2**53
"""Largest integer that all JSON clients support."""

StepNumber = Annotated[int, Field(ge=0), AfterValidator(partial(min, MAX_STEP))]
"""Step. Larger values become MAX_STEP, which exceeds every maxSteps."""
PageNumber = Annotated[int, Field(ge=1), AfterValidator(partial(min, MAX_NUMBER))]
Offset = Annotated[int, Field(ge=0), AfterValidator(partial(min, MAX_NUMBER))]
RowCount = Annotated[int, Field(ge=1), AfterValidator(partial(min, MAX_NUMBER))]
"""Number of rows. Routes that use this type apply their own maximum."""
