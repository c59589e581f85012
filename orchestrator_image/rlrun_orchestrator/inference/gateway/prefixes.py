"""Exact token prefixes of conversations: the tokens with which the next prompt must start, and how to build it.

A chat request contains messages, and the template may render the model's own answer with tokens other than the sampled
ones: text is split differently, arguments of calls are reformatted. The gateway has recorded the sampled tokens. It
sends these tokens, followed by the tokens that the template puts after the answer. It does so only if the engine's own
rendering shows that both are correct and that the template keeps the whole answer. Otherwise the chat is sent
unchanged, and a new training sequence starts.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun_orchestrator.data.trajectories import Turn, common_length
from rlrun_orchestrator.inference.gateway.conversations import Conversation, Messages, calls_of, reasoning_of
from rlrun_orchestrator.inference.gateway.token_text import SPACE, SPECIAL, token_text

EMPTY_REASONING = "<think></think>"
"""Text, without whitespace, that a template may put before an answer without reasoning and omit later."""
ENDS = ("stop", "tool_calls")
"""Finish reasons of answers that the model ended itself."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """Tokens of messages, rendered by the engine."""

    ids: "array[int]"
    names: Sequence[str]
    """Names of the tokens in the vocabulary."""


def has_ended(requested: Mapping[str, Any], choice: Mapping[str, Any], turn: Turn) -> bool:
    """Return True if the model ended its turn with an end-of-turn token. `choice` is the only choice in the
    response.
    """
    # A token id as finish reason is another end-of-turn token of the model, unless the client requested it as stop
    # token.
    reason = choice.get("stop_reason")
    usual = reason is None or (isinstance(reason, int) and not requested.get("stop_token_ids"))
    return turn.finish_reason in ENDS and usual and bool(turn.completion_ids)


def shown_messages(messages: Messages, last: Conversation) -> list[Any]:
    """Return the messages of a chat that continues `last`, adding the reasoning that the client omitted."""
    shown = list(messages)
    one: Conversation | None = last
    while one is not None:
        if said := reasoning_of(one.answer):
            shown[one.count] = shown[one.count] | {"reasoning": said}
        one = one.before
    return shown


def is_open_ended(requested: Mapping[str, Any]) -> bool:
    """Return True if the request is for a new answer, not for the continuation of a message."""
    return not requested.get("continue_final_message") and requested.get("add_generation_prompt") is not False


def continue_exactly(last: Conversation, whole: "array[int]") -> "array[int] | None":
    """Return the prompt that starts with the exact tokens of `last`, or None if the template changes earlier tokens or
    renders the answer differently than sampled. `whole` has the tokens of all messages.
    """
    completion = last.turn.completion_ids
    prompt_ids = last.prompt_ids
    start, end = len(prompt_ids), len(prompt_ids) + len(completion)
    if not has_prefix(whole, prompt_ids) or whole[start:end] != completion or len(whole) == end:
        return None
    return last.tokens + whole[end:]


def bridge(last: Conversation, until: RenderedChat, whole: "array[int]") -> "array[int] | None":
    """Return a prompt that starts with the exact tokens of `last` and continues with the tokens that the chat template
    renders after the model's last answer, or None if this prompt is not certain to be correct.

    `until` has the tokens of the messages up to and including that answer, without a generation prompt; `whole` has the
    tokens of all messages. Returns None unless the completion ended with a token that ends the model's turn, and the
    template renders this token directly after the answer.
    """
    before = last.prompt_ids
    if not last.ended or not has_prefix(until.ids, before):
        return None
    common = common_length(before, whole)
    if "".join(token_text(until.names[common : len(before)]).split()) not in ("", EMPTY_REASONING):
        return None
    answer, names = until.ids[len(before) :], until.names[len(before) :]
    if not has_prefix(whole[common:], answer):
        return None
    following = whole[common + len(answer) :]
    end = last.turn.completion_ids[-1]
    if end in answer:
        place = answer.index(end)
        behind = answer[place + 1 :]
    elif following and following[0] == end:
        # The token also starts the next message, as in GLM's templates.
        place, behind, following = len(answer), array("i"), following[1:]
    else:
        return None
    is_whole = _has_all_parts(token_text(names[:place]), last.answer) and not token_text(names[place + 1 :]).strip()
    is_whole = is_whole and _has_all_sampled(names[:place], last.sampled_text)
    return last.tokens + behind + following if is_whole and following else None


def has_prefix(ids: "array[int]", prefix: "array[int]") -> bool:
    """Return True if `ids` start with exactly these tokens."""
    return len(ids) >= len(prefix) and ids[: len(prefix)] == prefix


def sampled_text(texts: Iterable[str]) -> str:
    """Return the text of an answer's tokens without special tokens. Models may add special tokens that templates omit,
    as gpt-oss does.
    """
    return "".join(text for text in texts if not SPECIAL.fullmatch(text))


def _has_all_sampled(names: Iterable[str], sampled: str) -> bool:
    """Return True if a rendered answer has every character that the model sampled, apart from whitespace. Otherwise the
    parser dropped text from the message, and the sampled tokens would restore text that the template removes.
    """
    rendered = Counter(token_text(name for name in names if not SPECIAL.fullmatch(name)).casefold())
    counts = Counter(sampled.replace(SPACE, " ").casefold())
    return all(character.isspace() or count <= rendered[character] for character, count in counts.items())


def _has_all_parts(text: str, answer: Mapping[str, Any]) -> bool:
    """Return True if a rendered answer has all of the model's reasoning, content and names of calls, in order."""
    place = 0
    names = [str(call[1]) for call in calls_of(answer) if isinstance(call, tuple)]
    for part in (reasoning_of(answer), str(answer.get("content") or ""), *names):
        found = text.find(part.strip(), place)
        if found < 0:
            return False
        place = found + len(part.strip())
    return True
