"""Base class of all API and message models.

A field is `max_steps` in Python and `maxSteps` in JSON and Kubernetes objects. Unknown fields are rejected, except
in subclasses that configure otherwise: ignoring a misspelled field could cost the user a whole training run.
"""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from rlrun.api.base.received import DEFAULT_LIMITS, InputLimits


class Schema(BaseModel):
    """Base model with snake_case field names in Python and camelCase names in JSON."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
    )
    wire_limits: ClassVar[InputLimits] = DEFAULT_LIMITS
    """Limits of the JSON text from which the model is parsed."""

    def to_json_dict(self) -> dict[str, object]:
        """Return the model as plain JSON types with camelCase names. Fields that are None are omitted."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
