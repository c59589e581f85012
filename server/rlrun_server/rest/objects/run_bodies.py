"""Bodies of requests that create or change runs."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pydantic import ValidationError
from rlrun.api.base.field_errors import MAX_SUGGESTIONS, fields_at, problems, unknown_field
from rlrun.api.base.received import MAX_FAULTS, InputInvalid, InputLimits, read_json
from rlrun.api.run import RLRun, RLRunSpec
from rlrun.api.toml.dialects import group_by_reason
from rlrun.api.toml.loader import TomlError, loads
from rlrun.constants import API_VERSION, MAX_RUN_NAME, REQUEST_ANNOTATION, USER_ANNOTATION, Reason
from rlrun.kube.objects import Obj

from rlrun_server.http.yaml_and_toml import check_toml, read_yaml
from rlrun_server.rest.base.problems import FieldError, RestError, from_field_problems, invalid

JSON, YAML, TOML, MERGE_PATCH = (
    "application/json",
    "application/yaml",
    "application/toml",
    "application/merge-patch+json",
)
METADATA = ("name", "generateName", "labels", "annotations")
"""Fields of the metadata that a request may set."""
SUFFIX = 5
"""Length of the suffix in names derived from an Idempotency-Key. The API server's generated suffixes have the same
length.
"""
DEFAULT_BASE = "run"
LIMITS = InputLimits(values=150_000)
MAX_WARNINGS, MAX_WARNING = 16, 200
"""Maximum number of notes in one response, and of characters in each note."""


@dataclass(frozen=True)
class NewRun:
    """Run to create, as parsed from a request."""

    spec: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    pointer: str = ""
    """JSON pointer to the spec in the body."""
    notes: list[str] = field(default_factory=list)
    """Notes about ignored keys and adapted values of a TOML file."""

    def warning(self) -> dict[str, str]:
        """Return a Warning header with the notes, in the format of the API server's warnings, or an empty dict if there
        are no notes.
        """
        if not self.notes:
            return {}
        texts = (note.encode("ascii", "backslashreplace").decode()[:MAX_WARNING] for note in self.notes[:MAX_WARNINGS])
        return {"Warning": ", ".join(f"299 - {json.dumps(text)}" for text in texts)}


def read_run(media_type: str, body: bytes, namespace: str) -> NewRun:
    """Parse a body: a spec, an RLRun or a TOML file. Raises RestError with all problems. `namespace` is the default
    owner of environments in a TOML file.
    """
    readers = {JSON: read_object, YAML: read_yaml, "application/x-yaml": read_yaml, "text/yaml": read_yaml}
    try:
        if media_type == TOML:
            return _from_toml(check_toml(body), namespace)
        if media_type not in readers:
            detail = f"The Content-Type {media_type[:80]!r} is not supported. Send {JSON}, {YAML} or {TOML}."
            raise RestError(415, Reason.MEDIA_TYPE_UNSUPPORTED, detail)
        return _from_object(readers[media_type](body))
    except InputInvalid as error:
        raise invalid(str(error)) from error


def read_object(body: bytes) -> Any:
    """Parse the JSON of a run or a change, which may be large because environment arguments may be long lists. Raises
    InputInvalid.
    """
    return read_json(body, limits=LIMITS)


def to_object(run: NewRun, namespace: str, user: str, identity: str, key: str, body: bytes) -> Obj:
    """Return the RLRun to create, annotated with the name of its `user`.

    If there is an Idempotency-Key (`key`) and the body has no name, the name is derived from `key` and `identity`, so
    that a retry finds the run. Raises RestError if the body and the path have different namespaces.
    """
    if run.metadata.get("namespace") not in (None, "", namespace):
        detail = f"differs from the namespace of the path, {namespace}; remove it, or make both equal"
        raise _invalid_spec([FieldError(pointer="/metadata/namespace", detail=detail)])
    metadata: dict[str, Any] = {name: run.metadata[name] for name in METADATA if name in run.metadata}
    base = str(metadata.pop("generateName", "") or "") or f"{base_name(run.spec.get('name'))}-"
    metadata["namespace"] = namespace
    metadata["annotations"] = {**metadata.get("annotations", {}), USER_ANNOTATION: user}
    if key:
        metadata["annotations"][REQUEST_ANNOTATION] = digest_of(body)
    if "name" not in metadata:
        base = base[: MAX_RUN_NAME - SUFFIX]
        if key:
            metadata["name"] = f"{base}{_letters(identity, key)}"
        else:
            metadata["generateName"] = base
    return {"apiVersion": API_VERSION, "kind": "RLRun", "metadata": metadata, "spec": run.spec}


def digest_of(body: bytes) -> str:
    """Return the digest of a body, which distinguishes a retry from a different request with the same key."""
    return hashlib.sha256(body).hexdigest()[:32]


def base_name(title: object) -> str:
    """Return a name prefix made from a title."""
    words = re.sub(r"[^a-z0-9]+", "-", str(title or "").lower()).strip("-").lstrip("-0123456789")
    return words or DEFAULT_BASE


def read_changes(media_type: str, body: bytes) -> dict[str, Any]:
    """Return the changed fields of the spec, from a merge patch of an RLRun. Raises RestError with all problems."""
    if media_type not in (MERGE_PATCH, JSON):
        detail = f"The Content-Type {media_type[:80]!r} is not supported. Send a merge patch as {MERGE_PATCH}."
        raise RestError(415, Reason.MEDIA_TYPE_UNSUPPORTED, detail)
    try:
        document = read_object(body)
    except InputInvalid as error:
        raise invalid(str(error)) from error
    if not isinstance(document, dict) or set(document) != {"spec"} or not isinstance(document["spec"], dict):
        raise invalid('The body must be a merge patch that contains only spec, such as {"spec": {"maxSteps": 200}}.')
    changes: dict[str, Any] = document["spec"]
    known = fields_at(RLRunSpec, (), by_name=False)
    mutable = {RLRunSpec.model_fields[name].alias or name for name in RLRunSpec.mutable or ()}
    errors = [
        FieldError(pointer=f"/spec/{name}", detail=_why_not(name, known, mutable, suggests=number < MAX_SUGGESTIONS))
        for number, name in enumerate(islice((name for name in changes if name not in mutable), MAX_FAULTS))
    ]
    if errors:
        detail = "The patch changes fields that cannot be changed. Remove the fields listed in `errors`."
        raise RestError(422, Reason.INVALID_SPEC, detail, errors)
    return changes


def _why_not(name: str, known: list[str], mutable: set[str], *, suggests: bool) -> str:
    if name not in known:
        return unknown_field(name, known, suggests=suggests)
    can_change = ", ".join(sorted(mutable))
    return f"cannot be changed after the run is created; start a new run. Fields that can be changed: {can_change}"


def _from_toml(text: str, namespace: str) -> NewRun:
    try:
        document = loads(text, namespace)
    except TomlError as error:
        raise _invalid_spec(from_field_problems(error.problems)) from error
    if document.env_files:
        errors = [
            FieldError(
                pointer="/env_file", detail="name a Secret in envFrom, because the server cannot read your files"
            )
        ]
        raise _invalid_spec(errors)
    spec = document.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return NewRun(spec, notes=list(group_by_reason(document.notes)))


def _from_object(document: Any) -> NewRun:
    if not isinstance(document, dict):
        raise invalid("The body must be one object: the spec of a run, or an RLRun.")
    if "spec" not in document:
        run = NewRun(document)
        _check(run, "spec.")
        return run
    metadata = document.get("metadata") or {}
    if (
        document.get("kind", "RLRun") != "RLRun"
        or not isinstance(metadata, dict)
        or not isinstance(document["spec"], dict)
    ):
        raise invalid("The body must be one object: the spec of a run, or an RLRun.")
    unknown = islice((name for name in document if name not in ("apiVersion", "kind", "metadata", "spec")), MAX_FAULTS)
    errors = [
        FieldError(pointer=f"/{name}", detail="remove it: a request may have only apiVersion, kind, metadata and spec")
        for name in unknown
    ]
    errors += [
        FieldError(pointer=f"/metadata/{name}", detail=f"remove it: a request may set only {', '.join(METADATA)}")
        for name in islice((name for name in metadata if name not in (*METADATA, "namespace")), MAX_FAULTS)
    ]
    if errors:
        raise _invalid_spec(errors)
    run = NewRun(document["spec"], metadata, "/spec")
    _check(run, "")
    return run


def _check(run: NewRun, removed: str) -> None:
    """Check the run. If the body is only a spec, `removed` is the prefix to remove from field paths in errors, else
    empty. Raises RestError.
    """
    # The API server generates a name if none is given.
    obj = {"apiVersion": API_VERSION, "kind": "RLRun", "metadata": {"name": "run", **run.metadata}, "spec": run.spec}
    try:
        RLRun.from_object(obj)
    except ValidationError as error:
        field_problems = problems(error, RLRun)
        errors = [
            FieldError(pointer=each.pointer.removeprefix("/spec") if removed else each.pointer, detail=each.detail)
            for each in from_field_problems(field_problems)
        ]
        raise _invalid_spec(errors) from error


def _invalid_spec(errors: list[FieldError]) -> RestError:
    detail = "The run is not valid. Nothing was created. Correct the fields listed in `errors`."
    return RestError(422, Reason.INVALID_SPEC, detail, errors)


def _letters(identity: str, key: str) -> str:
    digest = hashlib.sha256(f"{identity}\n{key}".encode()).digest()
    return base64.b32encode(digest).decode().lower().translate(str.maketrans("234567", "uvwxyz"))[:SUFFIX]
