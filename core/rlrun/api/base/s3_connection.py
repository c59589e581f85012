"""Connection to the platform's S3 service, passed to every program as one JSON value."""

from collections.abc import Mapping
from typing import Self

from rlrun.api.base.addressing_style import AddressingStyle, addressing_problem, read_addressing_style
from rlrun.api.base.names import Text
from rlrun.api.base.received import parse
from rlrun.api.base.schema import Schema

VARIABLE = "RLRUN_S3_CONNECTION"
"""Environment variable that contains a connection as JSON."""


class S3Connection(Schema):
    """Settings that all S3 clients use: the section `s3` of the chart's values, without secrets.

    Subclasses add settings that only some programs need.
    """

    endpoint: Text = ""
    """URL of an S3-compatible service. Empty for AWS."""
    region: Text = "us-east-1"
    addressing_style: AddressingStyle = AddressingStyle.path
    dual_stack: bool = False
    """Uses AWS endpoints that have IPv6 addresses as well. An `endpoint` takes precedence."""

    @classmethod
    def of_variables(cls, variables: Mapping[str, str]) -> "S3Connection":
        """Read the connection from `RLRUN_S3_CONNECTION`, or else from the AWS_* variables. Raises ValueError if
        a variable has an invalid value.
        """
        if text := variables.get(VARIABLE):
            return parse(S3Connection, text, VARIABLE)
        return S3Connection(
            endpoint=variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL") or "",
            region=variables.get("AWS_DEFAULT_REGION") or variables.get("AWS_REGION") or "us-east-1",
            addressing_style=read_addressing_style(variables),
        )

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that configure another process with this connection."""
        own = set(S3Connection.model_fields)
        return {VARIABLE: self.model_dump_json(by_alias=True, exclude_defaults=True, include=own)}

    @property
    def url(self) -> str:
        """URL of the service."""
        return self.endpoint or f"https://s3.{'dualstack.' if self.dual_stack else ''}{self.region}.amazonaws.com"

    @property
    def service_name(self) -> str:
        """Name of the service in messages and metrics."""
        return self.endpoint or f"AWS S3 ({self.region})"

    def at(self, endpoint: str) -> Self:
        """Return a copy of the connection with a different endpoint."""
        return self.model_copy(update={"endpoint": endpoint})

    def problem_of(self, bucket: str) -> str:
        """Return why the bucket cannot be addressed, or an empty string if it can."""
        return addressing_problem(self.addressing_style, self.endpoint, bucket)
