"""Reads settings from environment variables: each field of a settings model has the variable `RLRUN_<FIELD>`."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from rlrun.api.base.names import snake
from rlrun.api.base.schema import Schema

PREFIX = "RLRUN_"

Settings = TypeVar("Settings", bound=Schema)


def read_settings(model: type[Settings], environ: Mapping[str, str], prefix: str = PREFIX) -> Settings:
    """Read the settings. Empty variables count as unset. Raises ValueError, which names the invalid variable."""
    variables = {field: f"{prefix}{field.upper()}" for field in model.model_fields}
    try:
        return model.model_validate({f: environ[name] for f, name in variables.items() if environ.get(name)})
    except ValidationError as error:
        first = error.errors()[0]
        variable = prefix + snake(str(first["loc"][-1])).upper()
        raise ValueError(f"{variable}: {first['msg']}") from error
