"""Demonstrations for supervised steps, read from the reference answers of a dataset."""

from collections.abc import Mapping
from typing import Any

from rlrun.constants import Reason
from rlrun.protocol.environment import Demonstration, DemonstrationRequest
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError

from rlrun_environment.worker.user_code.loaded import Loaded, present_fields, row_of

REASON = Reason.DEMONSTRATIONS_MISSING


def demonstrate(loaded: Loaded, request: DemonstrationRequest) -> Demonstration:
    """Return the prompt and the answer of an example. The answer is the `completion` of the example's row (messages or
    a string), or else the string in its `answer`. Tools come from the row's column `tools`, or else from the
    environment's attribute `tools`.

    Raises ProblemError (404): ExampleNotFound, or DemonstrationsMissing with the columns that the row lacks.
    """
    row = present_fields(row_of(loaded, request.split, request.example_index), loaded, request.split)
    prompt = _messages(row.get("prompt"), "user") or _messages(row.get("question"), "user")
    completion = _messages(row.get("completion"), "assistant") or _messages(row.get("answer"), "assistant")
    which = f"Example {request.example_index} of the {request.split} split"
    if not prompt:
        raise _missing(which, row, "no `prompt` (messages or a string)", "Add one to each row.")
    if not any(message["role"] == "assistant" for message in completion):
        lack = "neither a `completion` (messages with an assistant message, or a string) nor a string in `answer`"
        raise _missing(which, row, lack, "Add one of the two, or train without supervised steps.")
    tools = _tools(row.get("tools")) or _tools(getattr(loaded.environment, "tools", None))
    return Demonstration(prompt=prompt, completion=completion, tools=tools)


def _tools(value: Any) -> list[dict[str, Any]]:
    """Return the tools in the format of the OpenAI API, or an empty list for any other value, such as functions."""
    if not isinstance(value, list | tuple) or not all(isinstance(entry, Mapping) for entry in value):
        return []
    return [dict(entry) for entry in value]


def _messages(value: Any, role: str) -> list[dict[str, Any]]:
    """Return the chat messages in a column's value, or an empty list if the value cannot be read as messages."""
    if isinstance(value, str):
        return [{"role": role, "content": value}] if value else []
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        return []
    messages = [_message(entry) for entry in value]
    return [message for message in messages if message is not None] if all(messages) else []


def _message(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        dump = getattr(value, "model_dump", None)
        value = dump(exclude_none=True) if callable(dump) else {}
    # Clients of the OpenAI API write null for absent fields.
    message = {str(key): entry for key, entry in value.items() if entry is not None}
    return message if isinstance(message.get("role"), str) else None


def _missing(which: str, row: Mapping[str, Any], lack: str, advice: str) -> ProblemError:
    message = f"{which} has {lack}. Its columns are {', '.join(sorted(map(str, row)))}. {advice}"
    return ProblemError(404, Problem(reason=REASON, message=message))
