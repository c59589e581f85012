"""Tokenizer of the example model, read from its own files: one token per character, and a few special tokens.

Other kinds of tokenizers and other chat templates are refused at the start, because the stub would tokenize otherwise
than the real engine.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ message['content'] + ('<eos>' if message['role'] == 'assistant' else '<sep>') }}"
    "{%- endfor -%}"
)
"""Template of examples/reverse_text_model, which `render` repeats."""


class TokenizerUnsupported(ValueError):
    """The model's tokenizer is not that of the example model."""


class CharacterTokenizer:
    """Converts texts and chats to token ids, as the `tokenizers` library does with the same files."""

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json` and `tokenizer_config.json`. Raises TokenizerUnsupported."""
        found = json.loads((folder / "tokenizer.json").read_text())
        template = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
        if found["model"]["type"] != "WordLevel" or template != CHAT_TEMPLATE:
            raise TokenizerUnsupported(
                f"{folder}: the stub engine reads the tokenizer of examples/reverse_text_model only"
            )
        vocabulary: dict[str, int] = found["model"]["vocab"]
        self._normalizers: list[dict[str, Any]] = found["normalizer"]["normalizers"]
        self._special: dict[str, int] = {token["content"]: token["id"] for token in found["added_tokens"]}
        self._ids: dict[str, int] = vocabulary | self._special
        self._tokens = {number: token for token, number in self._ids.items()}
        self._unknown: int = self._ids[found["model"]["unk_token"]]
        self._split = re.compile("(" + "|".join(map(re.escape, self._special)) + ")")
        self.letters = [number for token, number in sorted(vocabulary.items()) if token not in self._special]
        """Ids of characters."""
        self.special = frozenset(self._special.values())
        self.end, self.separator = self._ids["<eos>"], self._ids["<sep>"]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are recognized."""
        ids: list[int] = []
        for part in self._split.split(text):
            if part in self._special:
                ids.append(self._special[part])
            else:
                ids += [self._ids.get(letter, self._unknown) for letter in self._normalized(part)]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of token ids."""
        return "".join(self._tokens[number] for number in ids if not (skip_special and number in self.special))

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of a chat. The template has no generation prompt."""
        ends = {True: "<eos>", False: "<sep>"}
        return self.encode("".join(_content(message) + ends[message["role"] == "assistant"] for message in messages))

    def _normalized(self, text: str) -> str:
        for step in self._normalizers:
            if step["type"] == "Lowercase":
                text = text.lower()
            else:
                text = re.sub(step["pattern"]["Regex"], step["content"], text)
        return text


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
