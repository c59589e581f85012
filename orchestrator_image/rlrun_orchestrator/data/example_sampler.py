"""Numbered examples, sampled so that an interrupted run gets the same examples as an uninterrupted run.

Every group gets an ordinal, counted from the beginning of the run. Its example is determined by the seed, the ordinal
and the examples drawn before it. Timing has an influence only if some environments cannot get a group at that moment,
because the example then comes from one of the others. Rewards change the draw only between two batches, in the order
of ordinals rather than of arrival. Examples that were sampled but not trained on when the state was saved are part of
the state: after a restart they come first, under their old ordinals, so that no example is skipped and no sampling seed
changes.

A run that starts from another run's checkpoint continues that run's draw in the same way: it starts with the
outstanding examples, keeps epochs and difficulty pools, and counts its own ordinals from 0.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rlrun_orchestrator.data.example_buffer import BufferState, Example, ExampleBuffer

MAX_REDRAWS = 2
"""Maximum number of times that an example is sampled again after its group has become stale."""


@dataclass(frozen=True, order=True)
class SampledExample:
    """Example, with the ordinal of the group that uses it."""

    ordinal: int
    example: Example


@dataclass(frozen=True)
class SamplerState:
    """Saved state of the sampler. An example is `(ordinal, environment, index)`; a score is an example with its mean
    reward.
    """

    next: int
    again: list[tuple[int, str, int]]
    """Outstanding examples, which the next process samples again."""
    scores: list[tuple[int, str, int, float]]
    """Mean rewards that are not yet counted in the draw."""
    buffer: BufferState
    redraws: list[tuple[int, int]] = field(default_factory=list)
    """Ordinals of outstanding examples that were sampled again, with the number of times."""


class ExampleSampler:
    """Draws from the buffer. The caller keeps track of outstanding examples and passes them to
    `snapshot`.
    """

    def __init__(self, buffer: ExampleBuffer) -> None:
        self.buffer = buffer
        self.next = 0
        """Ordinal of the next new example."""
        self._replay: list[SampledExample] = []
        self._scores: list[tuple[SampledExample, float]] = []
        self._redraws: dict[int, int] = {}
        """Number of times that examples were sampled again, by ordinal."""
        self._reserved: set[int] = set()
        """Ordinals of groups that are still running after a rewind to a step before their examples were drawn."""
        self._initial_state = self.snapshot(())

    def next_example(self, environments: Collection[str]) -> SampledExample | None:
        """Return the next example of these environments, or None if they have none to draw. Replayed examples come
        before new examples.
        """
        sampled = next((d for d in self._replay if d.example.environment in environments), None)
        if sampled is not None:
            self._replay.remove(sampled)
        else:
            names = [name for name in self.buffer.names if name in environments]
            if not self.buffer.can_draw(names):
                return None
            sampled = self._new(names)
            while sampled.ordinal in self._reserved:
                sampled = self._new(names)
        return sampled

    def _new(self, names: Sequence[str]) -> SampledExample:
        sampled = SampledExample(self.next, self.buffer.draw(names))
        self.next += 1
        return sampled

    def requeue(self, sampled: Iterable[SampledExample]) -> None:
        """Sample these examples again, before new ones."""
        self._replay = sorted([*self._replay, *sampled])

    def redraw(self, stale: SampledExample) -> bool:
        """Sample the example of a stale group again, before new ones. Returns False if the example was already sampled
        again `MAX_REDRAWS` times.
        """
        redraws = self._redraws.get(stale.ordinal, 0)
        if redraws == MAX_REDRAWS:
            return False
        self._redraws[stale.ordinal] = redraws + 1
        self.requeue([stale])
        return True

    def discard(self, ordinals: Collection[int]) -> None:
        """Forget the examples with these ordinals, because a batch of an earlier process has trained on them."""
        self._replay = [d for d in self._replay if d.ordinal not in ordinals]
        self._scores = [(d, reward) for d, reward in self._scores if d.ordinal not in ordinals]

    def add_score(self, sampled: SampledExample, mean_reward: float) -> None:
        """Record the mean reward of an example. The draw ignores the reward until `apply_scores` is called."""
        self._scores.append((sampled, mean_reward))

    def apply_scores(self) -> None:
        """Make the draw use all recorded rewards. Called once per batch."""
        for sampled, mean_reward in sorted(self._scores):
            self.buffer.record_reward(sampled.example, mean_reward)
        self._scores.clear()

    # --- between two processes ----------------------------------------------------------------------------------------

    def snapshot(self, outstanding: Iterable[SampledExample]) -> SamplerState:
        """Return a state from which the `outstanding` examples are sampled again."""
        waiting = sorted([*outstanding, *self._replay])
        again = {d.ordinal for d in waiting}
        # Examples that are sampled again are scored again. For a filtered example only the score is left.
        scores = [(d, reward) for d, reward in sorted(self._scores) if d.ordinal not in again]
        return SamplerState(
            next=self.next,
            again=[(d.ordinal, d.example.environment, d.example.index) for d in waiting],
            scores=[(d.ordinal, d.example.environment, d.example.index, reward) for d, reward in scores],
            buffer=self.buffer.state(),
            redraws=[(ordinal, redraws) for ordinal, redraws in sorted(self._redraws.items()) if ordinal in again],
        )

    def restore(self, state: SamplerState, outstanding: Iterable[SampledExample] = ()) -> None:
        """Continue from `state`. The `outstanding` examples keep their ordinals."""
        taken = {sampled.ordinal for sampled in outstanding}
        self.buffer.restore(state.buffer)
        self.next = state.next
        self._replay = [d for d in self._load_examples(state.again) if d.ordinal not in taken]
        self._reserved = {ordinal for ordinal in (*taken, *(d.ordinal for d in self._replay)) if ordinal >= self.next}
        self._scores = [(d, reward) for d, reward in _scores(state) if self.buffer.contains(d.example)]
        self._redraws = dict(state.redraws)

    def reset(self, outstanding: Iterable[SampledExample] = ()) -> None:
        """Return to the beginning of the run."""
        self.restore(self._initial_state, outstanding)

    def start_from_run(self, state: SamplerState, outstanding: Iterable[SampledExample] = ()) -> None:
        """Start a new run from `state`, the state of another run's draw.

        The examples that were outstanding in the other run come first, with ordinals from 0. `outstanding` are this
        run's examples that already have groups; they keep their ordinals and are not drawn again. Then come the
        examples that the other run would have drawn next: the same choices of environments, epochs, positions and
        difficulty pools. Rewards that the other run had not yet counted in its draw are counted now.

        Environments are matched by name. An environment that the other run did not have, or whose dataset has changed
        size, starts its first epoch.
        """
        self.reset(outstanding)
        self.buffer.restore(state.buffer)
        for sampled, mean_reward in sorted(_scores(state)):
            if self.buffer.contains(sampled.example):
                self.buffer.record_reward(sampled.example, mean_reward)
        again = [
            SampledExample(ordinal, sampled.example) for ordinal, sampled in enumerate(self._load_examples(state.again))
        ]
        self._replay = [sampled for sampled in again if sampled.ordinal not in self._reserved]
        self.next = len(again)

    def _load_examples(self, listed: Iterable[tuple[int, str, int]]) -> list[SampledExample]:
        """Return those examples of a state that exist in this run, ordered by ordinal."""
        return [
            sampled
            for sampled in sorted(_sampled_example(*one) for one in listed)
            if self.buffer.contains(sampled.example)
        ]


def _sampled_example(ordinal: int, environment: str, index: int) -> SampledExample:
    return SampledExample(ordinal, Example(environment, index))


def _scores(state: SamplerState) -> list[tuple[SampledExample, float]]:
    return [
        (_sampled_example(ordinal, environment, index), reward) for ordinal, environment, index, reward in state.scores
    ]
