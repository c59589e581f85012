"""Regular expressions that a person writes and the operator runs, in time linear in the text.

Python's own engine backtracks: one careless pattern would hold up the operator for all runs. pydantic's engine, like
the API server's (RE2), has neither backreferences nor lookaround and always ends; so the same patterns are
valid on both sides, and the API server refuses the others.
"""

from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError, SchemaError, SchemaValidator, core_schema

MAX_PATTERN = 256
"""Characters of a pattern."""
MAX_TEXT = 8192
"""Characters of a text that are looked at: a termination message has 4,096 bytes at most."""
VALID = "''.matches(self) || !''.matches(self)"
"""For the API server: true of every pattern that can be compiled, an error for all others."""


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def check_pattern(pattern: str) -> str:
    """The pattern itself. Raises PydanticCustomError (a ValueError) where it cannot be compiled."""
    try:
        _compiled(pattern)
    except SchemaError:
        raise PydanticCustomError(
            "pattern",
            "{pattern} is not a regular expression of RE2: it has neither backreferences nor lookaround, and special "
            "characters that stand for themselves are written with a backslash",
            {"pattern": repr(pattern)},
        ) from None
    return pattern


def occurs(pattern: str, text: str) -> bool:
    """Whether the pattern matches anywhere in the first MAX_TEXT characters of the text."""
    return _compiled(pattern).isinstance_python(text[:MAX_TEXT])


Pattern = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_PATTERN,
        json_schema_extra={
            "x-kubernetes-validations": [{"rule": VALID, "message": "must be a regular expression (RE2)"}],
        },
    ),
    AfterValidator(check_pattern),
]
"""A regular expression of RE2."""
