"""Converts a rollout's turns to training sequences with exactly the tokens that the engine processed.

A chat template renders the whole conversation for each turn, and the result does not always start with the earlier
tokens (thinking that is stripped, tokens that merge differently). A rollout may also have several conversations. A turn
extends the longest sequence that is a prefix of its prompt. If there is none, the turn starts a new sequence, and
the break is counted. No token is trained on in a context that the engine did not see, and each sampled token is
trained on once. With the branching strategy every turn is a sequence.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlrun.api.run_sections.rollouts import TrajectoryStrategy


def token_array(ids: Iterable[int]) -> "array[int]":
    """Return token ids as an array, so that any two results can be compared. Raises TypeError and OverflowError for
    values that are not 32-bit integers.
    """
    return ids if isinstance(ids, array) else array("i", ids)


def logprob_array(values: Iterable[float]) -> "array[float]":
    """Return log-probabilities as an array of 32-bit numbers."""
    return values if isinstance(values, array) else array("f", values)


@dataclass(slots=True)
class Turn:
    """One completion of the engine, and its prompt. `logprobs` has one entry per completion token."""

    added_ids: "array[int]"
    """Tokens of the prompt, without the tokens that `share` found in an earlier turn."""
    completion_ids: "array[int]"
    logprobs: "array[float]"
    finish_reason: str | None = None
    bridged: bool = False
    """True if the prompt was built from an earlier turn's exact tokens, because the template renders different
    tokens.
    """
    version: int = 0
    """Version of the policy that sampled the completion."""
    before: "Turn | None" = field(default=None, repr=False, compare=False)
    shared: int = 0
    """Number of leading tokens that the prompt has in common with the prompt and completion of `before`."""

    @classmethod
    def of(
        cls,
        prompt_ids: Iterable[int],
        completion_ids: Iterable[int],
        logprobs: Iterable[float],
        finish_reason: str | None = None,
        version: int = 0,
    ) -> "Turn":
        """Return a turn from sequences of any type. Raises TypeError and OverflowError as `token_array` does."""
        ids = token_array(prompt_ids), token_array(completion_ids)
        return cls(*ids, logprob_array(logprobs), finish_reason, version=version)

    @property
    def new_tokens(self) -> int:
        """Number of tokens that the turn does not share with an earlier one."""
        return len(self.added_ids) + len(self.completion_ids)

    @property
    def prompt_ids(self) -> "array[int]":
        """All tokens of the prompt."""
        if self.before is None:
            return self.added_ids
        parts, turn, missing = [self.added_ids], self.before, self.shared
        while missing:
            if missing > turn.shared:
                parts.append((turn.added_ids + turn.completion_ids)[: missing - turn.shared])
                missing = turn.shared
            turn = turn.before or turn
        ids = array("i")
        for part in reversed(parts):
            ids.extend(part)
        return ids

    def share(self, earlier: Sequence["Turn"]) -> None:
        """Share leading tokens with the turn in `earlier` whose prompt is the longest prefix of this prompt. Tokens of
        that turn's completion are shared as far as they match.

        Storing complete prompts would need memory that grows with the square of the number of turns.
        """
        prompt = self.prompt_ids
        for turn in sorted(earlier, key=lambda one: one.shared + len(one.added_ids), reverse=True):
            size = turn.shared + len(turn.added_ids)
            # Compare the last token first, as in `_begins_with`, so the last token of each prompt is kept.
            if prompt[size - 1 : size] == turn.added_ids[-1:] and prompt[:size] == turn.prompt_ids:
                same = common_length(turn.completion_ids, prompt[size:])
                self.before, self.shared = turn, min(size + same, len(prompt) - 1)
                self.added_ids = prompt[self.shared :]
                return


class SampledSpan(NamedTuple):
    """Tokens of one turn that the policy sampled."""

    start: int
    end: int
    version: int
    """Version of the policy."""


@dataclass(slots=True)
class TokenSequence:
    """Token sequence, with the log-probability of each sampled token and 0.0 for the others."""

    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    sampled: list[SampledSpan] = field(default_factory=list)
    """Sampled tokens of each turn, in order. A turn may directly follow another one."""

    def extend(self, turn: Turn, prompt_ids: "array[int]") -> None:
        """Append a turn whose `prompt_ids` start with all tokens so far: first the new tokens of the prompt, then the
        completion.
        """
        said = prompt_ids[len(self.token_ids) :]
        self.token_ids.extend(said)
        self.logprobs.frombytes(bytes(self.logprobs.itemsize * len(said)))
        start = len(self.token_ids)
        self.token_ids.extend(turn.completion_ids)
        self.logprobs.extend(turn.logprobs)
        if turn.completion_ids:
            self.sampled.append(SampledSpan(start, len(self.token_ids), turn.version))

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self.token_ids[length:], self.logprobs[length:]
        self.sampled = [span._replace(end=min(span.end, length)) for span in self.sampled if span.start < length]

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(span.end - span.start for span in self.sampled)

    @property
    def loss_mask(self) -> bytearray:
        """1 for each token that the policy sampled, and 0 for the others."""
        mask = bytearray(len(self.token_ids))
        for span in self.sampled:
            mask[span.start : span.end] = b"\1" * (span.end - span.start)
        return mask

    @property
    def turn_starts(self) -> list[int]:
        """Positions of the first sampled token of each turn."""
        return [span.start for span in self.sampled]

    @property
    def sampled_versions(self) -> set[int]:
        """Versions of the policies that sampled tokens of the sequence."""
        return {span.version for span in self.sampled}


@dataclass(slots=True)
class Trajectory:
    """Sequences of one rollout."""

    sequences: list[TokenSequence]
    prefix_breaks: int
    bridged: int = 0
    """Number of turns that the gateway sent as tokens and that would otherwise have been breaks."""


def build_trajectory(turns: Sequence[Turn], strategy: TrajectoryStrategy, seq_len: int) -> Trajectory:
    """Return the sequences of a rollout, each with at most `seq_len` tokens and at least one sampled token."""
    sequences: list[TokenSequence] = []
    breaks = 0
    for turn in turns:
        current, prompt_ids = None, turn.prompt_ids
        if strategy is TrajectoryStrategy.interleaved:
            current = _longest_prefix(sequences, prompt_ids)
            breaks += current is None and bool(sequences)
        if current is None:
            current = TokenSequence()
            sequences.append(current)
        current.extend(turn, prompt_ids)
    for sequence in sequences:
        sequence.truncate(seq_len)
    bridged = sum(turn.bridged for turn in turns)
    return Trajectory([sequence for sequence in sequences if sequence.sampled], breaks, bridged)


def _longest_prefix(sequences: Sequence[TokenSequence], prompt_ids: "array[int]") -> TokenSequence | None:
    """Return the longest sequence that is a prefix of the prompt, or the newest of equally long ones."""
    fitting = [one for one in reversed(sequences) if _begins_with(prompt_ids, one.token_ids)]
    return max(fitting, key=lambda one: len(one.token_ids), default=None)


def _begins_with(prompt_ids: "array[int]", ids: "array[int]") -> bool:
    size = len(ids)
    # Compare the last token first: copying the prompt for each sequence of a long rollout would block the gateway.
    last_fits = not size or (size <= len(prompt_ids) and prompt_ids[size - 1] == ids[-1])
    return last_fits and prompt_ids[:size] == ids


def common_length(one: "array[int]", other: "array[int]") -> int:
    """Return the length of the common prefix."""
    shorter = min(len(one), len(other))
    # Usually all tokens are equal, which needs no loop in Python.
    if one[:shorter] == other[:shorter]:
        return shorter
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), shorter)
