"""What every model of the schema has in common.

Python code says `max_steps`, JSON on the wire and in Kubernetes says `maxSteps`; unknown fields are refused rather
than dropped, because a misspelt field that is silently ignored costs its user a whole training run.
"""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Schema(BaseModel):
    """A strict model, camelCase outside and snake_case inside."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
    )

    def to_json_dict(self) -> dict[str, object]:
        """The model as plain JSON types under its outside names, unset optional fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
