"""Examples and their numbers, dealt so that a run that was interrupted is dealt the same ones as a run that was not.

Every group gets an ordinal, counted from the beginning of the run; its example follows from the ordinals before it.
Two things could let timing into that, and neither does. How hard an example turned out changes the draw only between
two batches, in the order of the ordinals, whatever the order in which groups came back. And what was dealt but not
trained when the state was saved is part of the state: after a restart it is dealt again, first and under its old
ordinal, so that no example is skipped and no seed of the sampling moves.

A run that starts from another run's checkpoint goes on in that run's draw in the same way (the examples under way
there, then the next ones, by the same epochs and difficulty pools), and counts its own ordinals from 0.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rlrun_orchestrator.data.example_buffer import BufferState, Example, ExampleBuffer


@dataclass(frozen=True, order=True)
class SampledExample:
    """One example and the number of the group that rolls it out."""

    ordinal: int
    example: Example


@dataclass(frozen=True)
class SamplerState:
    """Saved state of the draw. Examples are (ordinal, environment, index), scores have the mean reward behind that."""

    next: int
    again: list[tuple[int, str, int]]
    """Examples that are under way and are drawn again by the next process."""
    scores: list[tuple[int, str, int, float]]
    """Mean rewards that do not yet count in the draw."""
    buffer: BufferState


class ExampleSampler:
    """Draws from the buffer. What is under way is known elsewhere (`snapshot`)."""

    def __init__(self, buffer: ExampleBuffer) -> None:
        self.buffer = buffer
        self.next = 0
        """Ordinal of the next example that is drawn for the first time."""
        self._replay: list[SampledExample] = []
        self._scores: list[tuple[SampledExample, float]] = []
        self._reserved: set[int] = set()
        """Ordinals that were given out before a rewind to a step before their draw, and still have their group."""
        self._initial_state = self.snapshot(())

    def next_example(self, environments: Collection[str]) -> SampledExample | None:
        """The next example of these environments, what has to be dealt again before what is new; None without any."""
        dealt = next((d for d in self._replay if d.example.environment in environments), None)
        if dealt is not None:
            self._replay.remove(dealt)
        else:
            names = [name for name in self.buffer.names if name in environments]
            if not self.buffer.can_draw(names):
                return None
            dealt = self._new(names)
            while dealt.ordinal in self._reserved:
                dealt = self._new(names)
        return dealt

    def _new(self, names: Sequence[str]) -> SampledExample:
        dealt = SampledExample(self.next, self.buffer.draw(names))
        self.next += 1
        return dealt

    def requeue(self, dealt: Iterable[SampledExample]) -> None:
        """These were dealt for nothing and are dealt again, before what is new."""
        self._replay = sorted([*self._replay, *dealt])

    def discard(self, ordinals: Collection[int]) -> None:
        """These were trained on by an earlier process after all: they are not dealt again."""
        self._replay = [d for d in self._replay if d.ordinal not in ordinals]
        self._scores = [(d, reward) for d, reward in self._scores if d.ordinal not in ordinals]

    def add_score(self, dealt: SampledExample, mean_reward: float) -> None:
        """Notes how hard an example was; the draw hears of it with `settle`."""
        self._scores.append((dealt, mean_reward))

    def apply_scores(self) -> None:
        """A batch is complete: what is known by now counts in the draw."""
        for dealt, mean_reward in sorted(self._scores):
            self.buffer.record_reward(dealt.example, mean_reward)
        self._scores.clear()

    # --- between two processes ----------------------------------------------------------------------------------------

    def snapshot(self, outstanding: Iterable[SampledExample]) -> SamplerState:
        """Return the state in which the examples `outstanding`, which are under way now, are drawn again."""
        waiting = sorted([*outstanding, *self._replay])
        again = {d.ordinal for d in waiting}
        # What is dealt again is scored again; of what was filtered nothing else would be left.
        scores = [(d, reward) for d, reward in sorted(self._scores) if d.ordinal not in again]
        return SamplerState(
            next=self.next,
            again=[(d.ordinal, d.example.environment, d.example.index) for d in waiting],
            scores=[(d.ordinal, d.example.environment, d.example.index, reward) for d, reward in scores],
            buffer=self.buffer.state(),
        )

    def restore(self, state: SamplerState, outstanding: Iterable[SampledExample] = ()) -> None:
        """Continue from `state`. Examples that are still under way, `outstanding`, keep their ordinals."""
        taken = {dealt.ordinal for dealt in outstanding}
        self.buffer.restore(state.buffer)
        self.next = state.next
        self._replay = [d for d in self._load_examples(state.again) if d.ordinal not in taken]
        self._reserved = {ordinal for ordinal in (*taken, *(d.ordinal for d in self._replay)) if ordinal >= self.next}
        self._scores = [(d, reward) for d, reward in _scores(state) if self.buffer.contains(d.example)]

    def reset(self, outstanding: Iterable[SampledExample] = ()) -> None:
        """Go back to where the run began."""
        self.restore(self._initial_state, outstanding)

    def start_from_run(self, state: SamplerState, outstanding: Iterable[SampledExample] = ()) -> None:
        """Begins a run of its own in the middle of another run's draw, of which `state` tells.

        The other run's examples that were under way come first, under this run's ordinals from 0 on; then those that
        the other run would have drawn next: the same choices of environments, epochs, positions in them and difficulty
        pools. What was scored there and not settled is settled here. Environments are matched by name: one that the
        other run did not have, or whose data set has another size, begins its first epoch.
        """
        self.reset(outstanding)
        self.buffer.restore(state.buffer)
        for dealt, mean_reward in sorted(_scores(state)):
            if self.buffer.contains(dealt.example):
                self.buffer.record_reward(dealt.example, mean_reward)
        again = [
            SampledExample(ordinal, dealt.example) for ordinal, dealt in enumerate(self._load_examples(state.again))
        ]
        self._replay = [dealt for dealt in again if dealt.ordinal not in self._reserved]
        self.next = len(again)

    def _load_examples(self, listed: Iterable[tuple[int, str, int]]) -> list[SampledExample]:
        """The examples of a state, as far as this run has them, in the order of their ordinals."""
        return [dealt for dealt in sorted(_dealt(*one) for one in listed) if self.buffer.contains(dealt.example)]


def _dealt(ordinal: int, environment: str, index: int) -> SampledExample:
    return SampledExample(ordinal, Example(environment, index))


def _scores(state: SamplerState) -> list[tuple[SampledExample, float]]:
    return [(_dealt(ordinal, environment, index), reward) for ordinal, environment, index, reward in state.scores]
