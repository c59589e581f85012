"""From the turns of a rollout to training sequences, token by token as the engine saw them.

A chat template renders the whole conversation anew for each turn, and what it renders is not always what was there
before (thinking that is stripped, tokens that merge differently). So a turn extends the running sequence only if its
prompt starts with exactly those tokens; otherwise it opens a new sequence, and the break is counted. No token is ever
trained on that the engine did not see in that very place. With the branching strategy every turn is a sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlrun.api.run_sections.rollouts import TrajectoryStrategy


@dataclass(slots=True)
class Turn:
    """One answer of the engine. `logprobs` has one entry per completion token."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None = None
    bridged: bool = False
    """The prompt was made of the exact tokens of the turn before, because the template's would not begin with them."""


@dataclass(slots=True)
class TokenSequence:
    """Tokens, which of them the policy drew, and the engine's logprob of those (0.0 elsewhere); equal lengths."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def extend(self, turn: Turn) -> None:
        """Adds a turn whose prompt starts with all tokens so far: first what the environment said, then the answer."""
        said = turn.prompt_ids[len(self.token_ids) :]
        self.token_ids += said
        self.loss_mask += [False] * len(said)
        self.logprobs += [0.0] * len(said)
        self.token_ids += turn.completion_ids
        self.loss_mask += [True] * len(turn.completion_ids)
        self.logprobs += turn.logprobs

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens."""
        del self.token_ids[length:], self.loss_mask[length:], self.logprobs[length:]


@dataclass(slots=True)
class Trajectory:
    """All sequences of one rollout."""

    sequences: list[TokenSequence]
    prefix_breaks: int
    bridged: int = 0
    """Turns that would have been breaks, had the gateway not sent them as tokens."""


def build_trajectory(turns: Sequence[Turn], strategy: TrajectoryStrategy, seq_len: int) -> Trajectory:
    """The sequences of a rollout, each at most `seq_len` tokens and with at least one token that the policy drew."""
    sequences: list[TokenSequence] = []
    breaks = 0
    for turn in turns:
        current = sequences[-1] if sequences and strategy is TrajectoryStrategy.interleaved else None
        if current is not None and turn.prompt_ids[: len(current.token_ids)] != current.token_ids:
            breaks += 1
            current = None
        if current is None:
            current = TokenSequence()
            sequences.append(current)
        current.extend(turn)
    for sequence in sequences:
        sequence.truncate(seq_len)
    bridged = sum(turn.bridged for turn in turns)
    return Trajectory([sequence for sequence in sequences if any(sequence.loss_mask)], breaks, bridged)
