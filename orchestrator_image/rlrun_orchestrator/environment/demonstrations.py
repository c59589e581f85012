"""The right answer to an example, as its data set gives it: what supervised steps train on."""

from collections.abc import Mapping
from typing import Any

from rlrun.schema.wire import Demonstration, DemonstrationRequest, Problem

from rlrun_orchestrator.answers import Refusal
from rlrun_orchestrator.environment.loaded import Loaded, row_of

REASON = "DemonstrationsMissing"


def demonstrate(loaded: Loaded, request: DemonstrationRequest) -> Demonstration:
    """Prompt and answer: the row's `completion` (messages or a text), else the text in its `answer`.

    Raises Refusal (404): ExampleNotFound, or DemonstrationsMissing that names what the row lacks.
    """
    row = row_of(loaded, request.split, request.example_index)
    prompt = _messages(row.get("prompt"), "user") or _messages(row.get("question"), "user")
    completion = _messages(row.get("completion"), "assistant") or _messages(row.get("answer"), "assistant")
    which = f"example {request.example_index} of the {request.split} split"
    if not prompt:
        raise _missing(which, row, "no `prompt` (messages or a text)", "give each row one")
    if not any(message["role"] == "assistant" for message in completion):
        lack = "neither a `completion` (messages, one of them the assistant's, or a text) nor a text in `answer`"
        raise _missing(which, row, lack, "add one of the two, or train without supervised steps")
    return Demonstration(prompt=prompt, completion=completion)


def _messages(value: Any, role: str) -> list[dict[str, Any]]:
    """Chat messages of a column's value; none when it holds nothing that could be read as such."""
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
        value = dump() if callable(dump) else {}
    # A column of messages has every key of every message: those that one of them has not are None in it.
    message = {str(key): entry for key, entry in value.items() if entry is not None}
    return message if isinstance(message.get("role"), str) else None


def _missing(which: str, row: Mapping[str, Any], lack: str, advice: str) -> Refusal:
    message = f"{which} has {lack}: its columns are {', '.join(sorted(map(str, row)))}; {advice}"
    return Refusal(404, Problem(reason=REASON, message=message))
