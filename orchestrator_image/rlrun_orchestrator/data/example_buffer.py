"""Draws examples: environments by weight, and in each environment the examples in shuffled epochs, except those that
are too easy or too hard.

With difficulty filtering, an example moves to the pool `easy` or `hard` when the mean reward of its newest group
reaches a threshold, and only `normal` examples are drawn. A fixed fraction of easy and hard examples may stay in the
draw. If an environment has fewer normal examples than a batch has groups, the examples that were excluded longest ago
return and are judged again, because the policy has changed most since then. A run therefore never stops because its
thresholds were met, and no example dominates a batch: if an environment has at least as many examples as a batch has
groups, each example is drawn at most twice in that number of consecutive draws.

The n-th choice of an environment follows from (seed, n) and the environments that `draw` may choose from, and the order
of an epoch from (seed, environment, epoch). A checkpoint therefore contains a few numbers and the excluded examples,
not generators and shuffled datasets.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, order=True)
class Example:
    """One row of one environment's training set."""

    environment: str
    index: int


class Difficulty(StrEnum):
    """Reason why an example is excluded from sampling: too easy or too hard."""

    easy = "easy"
    hard = "hard"


@dataclass(frozen=True)
class EnvironmentExamplesState:
    """Saved position in the examples of one environment."""

    size: int
    epoch: int
    cursor: int
    excluded: list[tuple[int, Difficulty]] = field(default_factory=list)
    """Excluded examples, longest-excluded first. Older states do not have this field; all their examples return to the
    draw and are judged again.
    """


@dataclass(frozen=True)
class BufferState:
    """Saved state of a buffer."""

    draws: int
    pools: dict[str, EnvironmentExamplesState]


@dataclass(frozen=True)
class BufferSettings:
    """Settings of the buffer. Examples with a mean reward of at least `easy_threshold` are easy; examples with a mean
    reward of at most `hard_threshold` are hard.
    """

    seed: int = 0
    filtering: bool = False
    """True if easy and hard examples are excluded from the draw. If false, every example stays in the draw."""
    easy_threshold: float = 0.8
    hard_threshold: float = 0.2
    easy_fraction: float = 0.0
    """Fraction of the easy examples that stay in the draw."""
    hard_fraction: float = 0.0
    groups_per_batch: int = 1
    """Minimum number of examples that each environment keeps in the draw, if it has as many."""

    def decisive_mean(self, means: Sequence[float]) -> float:
        """Return the mean reward that decides the difficulty of an example with several agents.

        It is the mean closest to the midpoint of the two thresholds, or the higher of two equally close means. An
        example thus stays in the draw if one agent can still learn from it, and is easy if it is easy for one agent and
        hard for another. Raises ValueError if `means` is empty.
        """
        middle = (self.easy_threshold + self.hard_threshold) / 2
        return min(means, key=lambda mean: (abs(mean - middle), -mean))


@dataclass
class _EnvironmentExamples:
    """Examples of one environment."""

    name: str
    size: int
    seed: int
    fewest: int
    """Minimum number of examples that stay in the draw, if the environment has enough."""
    epoch: int = 0
    cursor: int = 0
    excluded: dict[int, Difficulty] = field(default_factory=dict)
    """Excluded examples, longest-excluded first."""
    readmitted: int = 0
    """Number of examples that have returned to the draw since the last call of `metrics`."""
    order: list[int] = field(default_factory=list)

    def shuffle(self) -> None:
        self.order = list(range(self.size))
        random.Random(f"{self.seed}/{self.name}/{self.epoch}").shuffle(self.order)

    @property
    def normal(self) -> int:
        return self.size - len(self.excluded)

    def count(self, difficulty: Difficulty) -> int:
        return sum(excluded is difficulty for excluded in self.excluded.values())

    def readmit(self) -> None:
        """Return the examples excluded longest ago to the draw until it has enough."""
        while self.excluded and self.normal < self.fewest:
            del self.excluded[next(iter(self.excluded))]
            self.readmitted += 1

    def draw(self) -> int:
        self.readmit()
        if not self.order:
            self.shuffle()
        while True:
            if self.cursor >= self.size:
                self.epoch, self.cursor = self.epoch + 1, 0
                self.shuffle()
            index = self.order[self.cursor]
            self.cursor += 1
            if index not in self.excluded:
                return index


class ExampleBuffer:
    """Draws examples and records their difficulty."""

    def __init__(self, sizes: Mapping[str, int], weights: Sequence[float] | None, settings: BufferSettings) -> None:
        """`sizes` has the number of examples by environment, in the run's order. `weights` are in the same order;
        if they are None, all environments have equal weights.

        Raises ValueError if there is nothing to draw from, or if the weights are invalid.
        """
        empty = [name for name, size in sizes.items() if size < 1]
        if not sizes:
            raise ValueError("the run has no environments")
        if empty:
            names = ", ".join(empty)
            raise ValueError(f"no training examples in {names}: load_environment must return a dataset with examples")
        if weights is not None and (len(weights) != len(sizes) or any(w < 0 for w in weights) or not any(weights)):
            raise ValueError(
                f"{len(sizes)} environments need {len(sizes)} weights, none negative and one or more above 0: {weights}"
            )
        self.settings = settings
        self.weights = [float(w) for w in (weights if weights is not None else [1.0] * len(sizes))]
        self._pools = {
            name: _EnvironmentExamples(name, size, settings.seed, settings.groups_per_batch)
            for name, size in sizes.items()
        }
        self._draws = 0
        self._evicted: Counter[Difficulty] = Counter()

    @property
    def names(self) -> list[str]:
        """Names of the environments, in the run's order."""
        return list(self._pools)

    @property
    def weight_by_name(self) -> dict[str, float]:
        """Probability of each environment in the draw, in the run's order."""
        return {name: weight / sum(self.weights) for name, weight in zip(self._pools, self.weights, strict=True)}

    def contains(self, example: Example) -> bool:
        """Return True if the example exists."""
        pool = self._pools.get(example.environment)
        return pool is not None and 0 <= example.index < pool.size

    def draw(self, environments: Sequence[str] | None = None) -> Example:
        """Return the next example. If `environments` is given, the example comes from one of them, and at least one of
        them needs a positive weight.
        """
        names = [name for name in self._pools if environments is None or name in environments]
        weights = [w for name, w in zip(self._pools, self.weights, strict=True) if name in names]
        name = random.Random(f"{self.settings.seed}/environments/{self._draws}").choices(names, weights)[0]
        self._draws += 1
        return Example(name, self._pools[name].draw())

    def can_draw(self, environments: Sequence[str]) -> bool:
        """Return True if any of these environments has a positive weight."""
        return any(w > 0 for name, w in zip(self._pools, self.weights, strict=True) if name in environments)

    def record_reward(self, example: Example, mean_reward: float) -> None:
        """Exclude an example as too easy or too hard, or readmit it, based on the mean reward of its newest group."""
        pool = self._pools[example.environment]
        pool.excluded.pop(example.index, None)
        if not self.settings.filtering:
            return
        if mean_reward >= self.settings.easy_threshold:
            difficulty, share = Difficulty.easy, self.settings.easy_fraction
        elif mean_reward <= self.settings.hard_threshold:
            difficulty, share = Difficulty.hard, self.settings.hard_fraction
        else:
            return
        if not self._stays(example, difficulty, share):
            pool.excluded[example.index] = difficulty
            self._evicted[difficulty] += 1

    def _stays(self, example: Example, pool: Difficulty, share: float) -> bool:
        # Decide once per example: a new random choice each time would eventually remove every example.
        return random.Random(f"{self.settings.seed}/{example.environment}/{example.index}/{pool}").random() < share

    def metrics(self) -> dict[str, float]:
        """Return the fractions of all examples that are excluded as easy, excluded as hard, and not excluded. Also
        return how many examples were excluded, and how many readmitted, since the last call.
        """
        total = sum(pool.size for pool in self._pools.values())
        easy = sum(pool.count(Difficulty.easy) for pool in self._pools.values())
        hard = sum(pool.count(Difficulty.hard) for pool in self._pools.values())
        evicted = {f"evicted_examples/{difficulty}": float(self._evicted[difficulty]) for difficulty in Difficulty}
        self._evicted.clear()
        readmitted = sum(pool.readmitted for pool in self._pools.values())
        for pool in self._pools.values():
            pool.readmitted = 0
        return {
            "pool/easy": easy / total,
            "pool/hard": hard / total,
            "pool/normal": (total - easy - hard) / total,
            **evicted,
            "readmitted_examples": float(readmitted),
        }

    def state(self) -> BufferState:
        """Return the state that a checkpoint keeps."""
        pools = {
            name: EnvironmentExamplesState(pool.size, pool.epoch, pool.cursor, list(pool.excluded.items()))
            for name, pool in self._pools.items()
        }
        return BufferState(self._draws, pools)

    def restore(self, state: BufferState) -> None:
        """Continue from `state`. The position of an environment whose dataset has changed size is not restored."""
        for name, pool in self._pools.items():
            pool_state = state.pools.get(name)
            if pool_state is None or pool.size != pool_state.size:
                continue
            pool.epoch, pool.cursor, pool.excluded = pool_state.epoch, pool_state.cursor, dict(pool_state.excluded)
            pool.shuffle()
        self._draws = state.draws
