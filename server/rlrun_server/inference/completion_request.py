"""Parsing and rewriting of completion requests. Both are slow for large bodies and should then run in a thread."""

import json
from dataclasses import dataclass
from typing import Any

from rlrun.api.base.received import InputInvalid, InputLimits, read_json
from rlrun.service.message_content import refused_content

from rlrun_server.inference.errors import InferenceError

LIMITS = InputLimits(values=400_000)
"""Limits of a body. A prompt of token ids has one value per token."""
MAX_MODEL = 600
"""Maximum length of a model's name: a namespace, the id of a base model and the name of an adapter."""


@dataclass(frozen=True)
class CompletionRequest:
    """Fields of a body that the server uses. All other fields are for the engine."""

    model: str
    stream: bool
    wants_usage: bool
    """True if the client requested an event with the usage at the end of the stream."""


def read_request(body: bytes) -> CompletionRequest:
    """Parse a body. Raises InferenceError."""
    fields = _fields(body)
    model = fields.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= MAX_MODEL:
        raise _invalid("model", "`model` must be the name of a deployed model. GET /v1/models lists these names.")
    stream, options = fields.get("stream"), fields.get("stream_options")
    if not isinstance(stream, bool | None):
        raise _invalid("stream", "`stream` must be true or false.")
    if not isinstance(options, dict | None):
        raise _invalid("stream_options", "`stream_options` must be an object.")
    if options and not stream:
        raise _invalid("stream_options", "`stream_options` requires `stream: true`.")
    if (refused := refused_content(fields.get("messages"), media=True)) is not None:
        message = f"{refused}. Engines do not load images, audio or video from URLs."
        raise _invalid("messages", message)
    return CompletionRequest(model, bool(stream), bool((options or {}).get("include_usage")))


def rewrite_request(body: bytes, model: str) -> bytes:
    """Return the body for the engine, with the engine's name of the model.

    The body must have been accepted by `read_request`. A streamed response always ends with the usage, which the server
    counts.
    """
    fields = _fields(body)
    fields["model"] = model
    if fields.get("stream"):
        fields["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _fields(body: bytes) -> dict[str, Any]:
    try:
        document = read_json(body, limits=LIMITS)
    except InputInvalid as error:
        raise InferenceError(400, "invalid_json", str(error)) from error
    if not isinstance(document, dict):
        raise InferenceError(400, "invalid_json", "The body must be a JSON object with `model`.")
    return document


def _invalid(param: str, message: str) -> InferenceError:
    return InferenceError(400, "invalid_request", message, param)
