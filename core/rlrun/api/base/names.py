"""Types of names and ids, whose patterns are used by pydantic and in the CRDs."""

import difflib
import re
from collections.abc import Iterable
from itertools import islice
from typing import Annotated

from pydantic import Field

LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_PORT = (
    "([1-9][0-9]?[0-9]?[0-9]?|[1-5][0-9][0-9][0-9][0-9]|6[0-4][0-9][0-9][0-9]"
    "|65[0-4][0-9][0-9]|655[0-2][0-9]|6553[0-5])"
)
UTC_TIME = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

ModelId = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")
]
"""Model id as on the Hugging Face Hub: `owner/name` such as `Qwen/Qwen3-4B`, or a name without an owner."""

MAX_ENVIRONMENT_ID = 128
ENVIRONMENT_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
EnvironmentId = Annotated[str, Field(min_length=3, max_length=MAX_ENVIRONMENT_ID, pattern=ENVIRONMENT_ID)]
"""Environment package as `owner/name`."""

ENVIRONMENT_REFERENCE = (
    r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*((@|==)([A-Za-z0-9][A-Za-z0-9.!+_-]{0,63})?)?$"
)
EnvironmentReference = Annotated[str, Field(min_length=3, max_length=MAX_ENVIRONMENT_ID, pattern=ENVIRONMENT_REFERENCE)]
"""Environment package as `owner/name`, `owner/name@version` or `owner/name==version`.

Without a version, the reference means the newest version.
"""

NEWEST_VERSION = "latest"
"""Version name that requests the newest version. An empty or missing version does the same."""


def split_version(reference: str) -> tuple[str, str | None]:
    """Split `owner/name`, `owner/name@version` or `owner/name==version` into package and version. The version is None
    if the reference requests the newest version.
    """
    package, _, version = reference.replace("==", "@", 1).partition("@")
    return package, named_version(version)


def named_version(version: str) -> str | None:
    """Return the version, or None if the text requests the newest version."""
    return version if version not in ("", NEWEST_VERSION) else None


EnvironmentName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]
"""Name of an environment in a run, chosen by the user."""

PackageVersion = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")]
"""Version of an environment package as in PEP 440."""

PackageDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$", max_length=71)]
"""SHA-256 of an environment package's files."""

CheckpointId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=320,
        pattern=r"^(cp_([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)?|[a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
    ),
]
"""Reference to an RLCheckpoint: its name, `namespace/name`, or its id `cp_namespace.name`."""

EgressHost = Annotated[
    str,
    Field(
        min_length=3,
        max_length=261,
        pattern=rf"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+(:{_PORT})?$",
    ),
]
"""Host outside the cluster, with an optional port: `api.example.com`, `api.example.com:8443`, `*.example.com`."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=SUBDOMAIN)]
"""Name of another Kubernetes object."""

NAMESPACE = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
MAX_NAMESPACE = 63
Namespace = Annotated[str, Field(min_length=1, max_length=MAX_NAMESPACE, pattern=NAMESPACE)]
"""Name of a namespace."""

S3Path = Annotated[str, Field(min_length=6, max_length=1024, pattern=r"^s3://[^/]+(/.*)?$")]
"""S3 URI: `s3://bucket/path`."""

Text = Annotated[str, Field(max_length=1024)]
"""Short text."""

Url = Annotated[str, Field(max_length=4096)]
"""HTTP or S3 URL."""


MOST_COMPARED = 1000
"""Maximum number of known names that are compared with an unknown name. Each comparison takes up to 0.1 ms."""


def package_name(name: str) -> str:
    """Return the normalized name of a package (PEP 503): `pi-agent-env` for `Pi.Agent_Env`."""
    return re.sub(r"[-_.]+", "-", name).strip("-").lower()


def package_id(environment: str) -> str:
    """Return an id `owner/name` with the normalized name. The owner is unchanged."""
    owner, slash, name = environment.rpartition("/")
    return f"{owner}{slash}{package_name(name)}"


def similar_packages(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of the `known` names or ids that resemble `name`. At most MOST_COMPARED names are compared."""
    return difflib.get_close_matches(package_id(name), list(islice(known, MOST_COMPARED)))


def snake(text: str) -> str:
    """Return a camelCase name in snake_case: `max_steps` for `maxSteps`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", text)


def snake_words(text: str) -> str:
    """Return the text with every camelCase word converted to snake_case."""
    return re.sub(r"\b[a-z]+(?:[A-Z][a-z0-9]*)+\b", lambda match: snake(match[0]), text)
