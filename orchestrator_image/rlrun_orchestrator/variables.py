"""Settings from the environment: each field of a settings model has a variable `RLRUN_<FIELD>`, upper case."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError
from rlrun.schema.base import Schema
from rlrun.schema.names import snake

PREFIX = "RLRUN_"

Settings = TypeVar("Settings", bound=Schema)


def read_settings(kind: type[Settings], environment: Mapping[str, str], prefix: str = PREFIX) -> Settings:
    """The settings; an empty variable counts as none. Raises ValueError that names the variable that does not fit."""
    names = {f"{prefix}{field.upper()}": field for field in kind.model_fields}
    try:
        return kind.model_validate({f: environment[n] for n, f in names.items() if environment.get(n)})
    except ValidationError as error:
        first = error.errors()[0]
        variable = prefix + snake(str(first["loc"][-1])).upper()
        raise ValueError(f"{variable}: {first['msg']}") from error
