"""Regular expressions from users. Matching takes time linear in the length of the text.

Python's `re` backtracks, so one inefficient pattern could block the operator for all runs. pydantic's engine, like RE2
in the API server, has neither backreferences nor lookaround and needs linear time. The API server rejects patterns that
are not RE2. The two syntaxes differ in rare constructs only, such as RE2's `\\Q...\\E`, which `check_pattern` refuses.
"""

from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError, SchemaError, SchemaValidator, core_schema

MAX_PATTERN = 256
"""Maximum length of a pattern in characters."""
MAX_TEXT = 8192
"""Maximum number of characters that are searched. A termination message has at most 4,096 bytes."""
VALID = "''.matches(self) || !''.matches(self)"
"""CEL expression that compiles the pattern: true if it is valid RE2, an evaluation error otherwise."""


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def check_pattern(pattern: str) -> str:
    """Return the pattern unchanged. Raises PydanticCustomError (a ValueError) if it cannot be compiled."""
    try:
        _compile(pattern)
    except SchemaError:
        raise PydanticCustomError(
            "pattern",
            "{pattern} is not a valid RE2 regular expression: RE2 has neither backreferences nor lookaround, and "
            "literal special characters need a backslash",
            {"pattern": repr(pattern)},
        ) from None
    return pattern


def occurs(pattern: str, text: str) -> bool:
    """Return whether the pattern matches anywhere in the first MAX_TEXT characters of the text."""
    return _compile(pattern).isinstance_python(text[:MAX_TEXT])


Pattern = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_PATTERN,
        json_schema_extra={
            "x-kubernetes-validations": [{"rule": VALID, "message": "must be a valid regular expression (RE2)"}],
        },
    ),
    AfterValidator(check_pattern),
]
"""Regular expression in RE2 syntax."""
