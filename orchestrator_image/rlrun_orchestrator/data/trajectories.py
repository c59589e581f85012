"""Conversion of a rollout's turns to training sequences with exactly the tokens that the engine processed.

A chat template renders the whole conversation for each turn, and the result does not always start with the earlier
tokens (thinking that is stripped, tokens that merge differently). A rollout may also have several conversations. A turn
extends the longest sequence with whose tokens its prompt starts. Otherwise it starts a new sequence, and the break is
counted. No token is trained on in a context that the engine did not see, and each sampled token is trained on once.
With the branching strategy every turn is a sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

from rlrun.api.run_sections.rollouts import TrajectoryStrategy


@dataclass(slots=True)
class Turn:
    """One completion of the engine, and its prompt. `logprobs` has one entry per completion token."""

    added_ids: list[int]
    """Tokens of the prompt, without those that `share` found in an earlier turn."""
    completion_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None = None
    bridged: bool = False
    """True if the prompt was built from the exact tokens of an earlier turn, because the template's would differ."""
    version: int = 0
    """Version of the policy that sampled the completion."""
    before: "Turn | None" = field(default=None, repr=False, compare=False)
    shared: int = 0
    """Number of tokens of `before` (its prompt and completion) with which the prompt starts."""

    @property
    def prompt_ids(self) -> list[int]:
        """All tokens of the prompt."""
        if self.before is None:
            return self.added_ids
        parts, turn, missing = [self.added_ids], self.before, self.shared
        while missing:
            if missing > turn.shared:
                parts.append([*turn.added_ids, *turn.completion_ids][: missing - turn.shared])
                missing = turn.shared
            turn = turn.before or turn
        ids: list[int] = []
        for part in reversed(parts):
            ids += part
        return ids

    def share(self, earlier: Sequence["Turn"]) -> None:
        """Share the first tokens of the prompt with the longest of the `earlier` turns whose prompt and completion
        begin this prompt.

        Storing whole prompts would need memory that grows with the square of a conversation's turns.
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


@dataclass(slots=True)
class TokenSequence:
    """Token sequence with a mask, logprobs and policy versions of equal length. The mask marks the tokens that the
    policy sampled. Elsewhere, logprobs are 0.0 and the version is that of the next sampled token.
    """

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn_starts: list[int] = field(default_factory=list)
    """Positions of the first sampled token of each turn. A turn may directly follow another one."""

    def extend(self, turn: Turn, prompt_ids: list[int]) -> None:
        """Append a turn whose `prompt_ids` start with all tokens so far: first the new tokens of the prompt, then the
        completion.
        """
        said = prompt_ids[len(self.token_ids) :]
        self.token_ids += said
        self.loss_mask += [False] * len(said)
        self.logprobs += [0.0] * len(said)
        if turn.completion_ids:
            self.turn_starts.append(len(self.token_ids))
        self.token_ids += turn.completion_ids
        self.loss_mask += [True] * len(turn.completion_ids)
        self.logprobs += turn.logprobs
        self.versions += [turn.version] * (len(self.token_ids) - len(self.versions))

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self.token_ids[length:], self.loss_mask[length:], self.logprobs[length:], self.versions[length:]
        self.turn_starts = [start for start in self.turn_starts if start < length]

    @property
    def sampled_versions(self) -> set[int]:
        """Versions of the policies that sampled tokens of the sequence."""
        return set(compress(self.versions, self.loss_mask))


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
    return Trajectory([sequence for sequence in sequences if any(sequence.loss_mask)], breaks, bridged)


def _longest_prefix(sequences: Sequence[TokenSequence], prompt_ids: list[int]) -> TokenSequence | None:
    """Return the longest sequence with which the prompt starts, or the newest of equally long ones."""
    fitting = [one for one in reversed(sequences) if _begins_with(prompt_ids, one.token_ids)]
    return max(fitting, key=lambda one: len(one.token_ids), default=None)


def _begins_with(prompt_ids: list[int], ids: list[int]) -> bool:
    size = len(ids)
    # Compare the last token first: copying the prompt for each sequence of a long rollout would block the gateway.
    last_fits = not size or (size <= len(prompt_ids) and prompt_ids[size - 1] == ids[-1])
    return last_fits and prompt_ids[:size] == ids


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    shorter = min(len(one), len(other))
    # Usually all tokens are equal, which needs no loop in Python.
    if one[:shorter] == other[:shorter]:
        return shorter
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), shorter)
