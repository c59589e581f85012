"""Maps the secrets of the hosted API to Kubernetes Secrets.

A global secret is a separate Secret with one variable. The secrets of an environment are the variables of the Secret
that the platform links to the environment by its name.
"""

import base64
import binascii
import re
from typing import Any

from pydantic import Field
from rlrun.api.base.schema import Schema
from rlrun.constants import CLI_FIELD_MANAGER, MANAGED_BY_LABEL
from rlrun.kube.objects import Obj, annotation, label

from rlrun_server.hosted_api.base.wire import Json, plain
from rlrun_server.rest.base.problems import invalid

HOSTED_LABEL = "rlrun.dev/hosted-secret"
"""Label of global secrets."""
VARIABLE_ANNOTATION = "rlrun.dev/variable"
DESCRIPTION_ANNOTATION = "rlrun.dev/description"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
MAX_VALUE = 256 * 1024


class NewSecret(Schema):
    """Request to create a secret."""

    name: str = Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
    value: str = Field(max_length=MAX_VALUE, repr=False)
    description: str | None = Field(default=None, max_length=500)
    is_file: bool = False
    """True if the value is a file's content in base64."""
    team_id: str | None = Field(default=None, max_length=253)


class SecretChange(Schema):
    """Request to change a secret. Unset fields are not changed."""

    name: str | None = Field(default=None, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
    value: str | None = Field(default=None, max_length=MAX_VALUE, repr=False)
    description: str | None = Field(default=None, max_length=500)
    is_file: bool = False
    team_id: str | None = Field(default=None, max_length=253)


def object_name(variable: str) -> str:
    """Return the name of the Secret that stores a global secret."""
    return f"hosted-{variable.lower().replace('_', '-').strip('-') or 'secret'}"


def encode_value(value: str, *, is_file: bool) -> str:
    """Encode a value for a Secret. Raises RestError for a file that is not base64."""
    if not is_file:
        return base64.b64encode(value.encode()).decode()
    try:
        return base64.b64encode(base64.b64decode(value, validate=True)).decode()
    except (binascii.Error, ValueError):
        raise invalid("The value of a file must be base64.", status=422) from None


def new_object(namespace: str, asked: NewSecret) -> Obj:
    """Return the Secret that stores a new global secret."""
    annotations = {VARIABLE_ANNOTATION: asked.name}
    if asked.description:
        annotations[DESCRIPTION_ANNOTATION] = asked.description
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": object_name(asked.name),
            "namespace": namespace,
            "labels": {HOSTED_LABEL: "global", MANAGED_BY_LABEL: CLI_FIELD_MANAGER},
            "annotations": annotations,
        },
        "type": "Opaque",
        "data": {asked.name: encode_value(asked.value, is_file=asked.is_file)},
    }


def changed_object(secret: Obj, change: SecretChange) -> Obj:
    """Return the changed Secret. It keeps the resourceVersion, so that the API server detects concurrent changes."""
    name = change.name or variable_of(secret)
    data = dict(secret.get("data") or {})
    held = data.pop(variable_of(secret), "")
    value = held if change.value is None else encode_value(change.value, is_file=change.is_file)
    metadata: dict[str, Any] = dict(secret["metadata"])
    annotations = {**(metadata.get("annotations") or {}), VARIABLE_ANNOTATION: name}
    if change.description is not None:
        annotations[DESCRIPTION_ANNOTATION] = change.description
    metadata.pop("managedFields", None)
    return {**secret, "metadata": {**metadata, "annotations": annotations}, "data": {**data, name: value}}


def variable_of(secret: Obj) -> str:
    """Return the name of a global secret."""
    return annotation(secret, VARIABLE_ANNOTATION)


def is_global(secret: Obj) -> bool:
    """Return whether the Secret belongs to a global secret."""
    return label(secret, HOSTED_LABEL) == "global" and NAME.fullmatch(variable_of(secret)) is not None


def global_secret(secret: Obj) -> Json:
    """Return a global secret without its value."""
    metadata = secret["metadata"]
    return {
        "id": metadata["name"],
        "name": variable_of(secret),
        "description": plain(annotation(secret, DESCRIPTION_ANNOTATION)) or None,
        "createdAt": str(metadata.get("creationTimestamp") or ""),
        "updatedAt": str(metadata.get("creationTimestamp") or ""),
    }


def environment_secret(secret: Obj, variable: str) -> Json:
    """Return one secret of an environment without its value. Its id is its name."""
    created = str(secret["metadata"].get("creationTimestamp") or "")
    return {"id": variable, "name": variable, "description": None, "createdAt": created, "updatedAt": created,
            "source": "environment"}  # fmt: skip
