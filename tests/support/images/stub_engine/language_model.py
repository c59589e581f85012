"""Distribution of the next token: a small language model without weights, which copies or reverses a message.

A prompt is `text <sep>`, an answer `text <eos>`, as for the example model. The digest of the weights decides how likely
the copy and how likely the reversed text is for a message. So rewards differ within a group, between policies and
between messages, and the same digest, prompt and seed give the same tokens in every process.
"""

import hashlib
import random
from collections.abc import Sequence

from tests.support.images.stub_engine.tokenizer import CharacterTokenizer

INTENDED = 0.85
"""Probability of the intended tokens together. The others share the rest."""
FAITHFUL = 0.95
"""Share of the text, copy or reverse, that the answer has begun with."""
STEP = 0.85
"""Ratio of the probabilities of successive letters where no message is to be copied."""
RARE = 1e-6
"""Weight of special tokens that no text has here."""


class LanguageModel:
    """Probabilities of all tokens, given the tokens before them."""

    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        self._tokenizer = tokenizer

    def next_token(self, weights: str, ids: Sequence[int]) -> dict[int, float]:
        """Return the probability of each token id after `ids`, all above 0. `weights`: digest of the weights."""
        message, answer = self._split(ids)
        here = self._tokenizer
        found = dict.fromkeys(sorted(here.special), RARE)
        found |= self._unintended(weights, ids)
        at = len(answer)
        if at < len(message):
            copied = self._share_of_copy(weights, message, answer)
            # An id outside of the vocabulary is none of `found` yet.
            for number, share in ((message[at], copied), (message[-1 - at], 1 - copied)):
                found[number] = found.get(number, 0.0) + INTENDED * share
        else:
            found[here.end] += INTENDED
        total = sum(found.values())
        return {number: value / total for number, value in found.items()}

    def _unintended(self, weights: str, ids: Sequence[int]) -> dict[int, float]:
        """Return the probability of each letter that is not intended."""
        letters = list(self._tokenizer.letters)
        if self._tokenizer.separator in ids:
            return dict.fromkeys(letters, (1 - INTENDED) / len(letters))
        # Without a message only these tell one policy from another.
        random.Random(f"{weights}/{list(ids)}").shuffle(letters)
        shares = [STEP**rank for rank in range(len(letters))]
        return {letter: (1 - INTENDED) * share / sum(shares) for letter, share in zip(letters, shares, strict=True)}

    def _split(self, ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return the last message, and what follows its separator."""
        start, begin, last = 0, 0, -1
        for position, number in enumerate(ids):
            if number == self._tokenizer.separator:
                begin, last = start, position
            if number in self._tokenizer.special:
                start = position + 1
        return (ids[begin:last], ids[last + 1 :]) if last >= 0 else ((), ids)

    @staticmethod
    def _share_of_copy(weights: str, message: Sequence[int], answer: Sequence[int]) -> float:
        copied = sum(a == b for a, b in zip(answer, message, strict=False))
        reversed_ = sum(a == b for a, b in zip(answer, reversed(message), strict=False))
        if copied != reversed_:
            return FAITHFUL if copied > reversed_ else 1 - FAITHFUL
        digest = hashlib.blake2b(f"{weights}/{list(message)}".encode(), digest_size=1).digest()
        return 0.3 + 0.4 * digest[0] / 255
