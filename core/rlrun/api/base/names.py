"""Names and ids as types: each pattern is written once and ends up in pydantic and in the CRDs."""

import re
from typing import Annotated

from pydantic import Field

LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

ModelId = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")
]
"""A model's id as on the Hugging Face hub: `Qwen/Qwen3-4B`, or one word."""

EnvironmentId = Annotated[
    str, Field(min_length=3, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")
]
"""`owner/name` of an environment package."""

EnvironmentName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]
"""What people call one use of an environment."""

PackageVersion = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")]
"""Version of an environment package, PEP 440."""

CheckpointId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
    ),
]
"""Name of an RLCheckpoint: `reverse-text-step-40`, or `namespace/name` for a shared one."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=SUBDOMAIN)]
"""Name of another Kubernetes object."""

Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""Name of a namespace."""

S3Path = Annotated[str, Field(min_length=6, max_length=1024, pattern=r"^s3://[^/]+(/.*)?$")]
"""s3://bucket/path."""

Text = Annotated[str, Field(max_length=1024)]
"""Short text for people."""


def snake(text: str) -> str:
    """maxSteps -> max_steps."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", text)


def snake_words(text: str) -> str:
    """The text with every camelCase word in it in snake_case."""
    return re.sub(r"\b[a-z]+(?:[A-Z][a-z0-9]*)+\b", lambda match: snake(match[0]), text)
