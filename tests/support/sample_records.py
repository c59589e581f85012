"""Records of rollouts for tests, and an object in memory that is read by ranges."""

from collections.abc import Callable
from typing import Any

from rlrun.storage.layout import S3Uri
from rlrun.storage.samples.index import SampleGroup, SampleRow
from rlrun.storage.samples.object_file import FOOTER, HEADER
from rlrun.storage.samples.record import FunctionReward, SampleRecord, SampleSplit, SampleStatus, TokenCounts

URI = S3Uri("bucket", "team/uid/rollouts/step-000003.jsonl.zst")


def record(group: str = "g0", rollout: str = "r0", **values: Any) -> SampleRecord:
    """A trained rollout with two reward functions."""
    return SampleRecord(
        **{
            "step": 3,
            "split": SampleSplit.train,
            "group": group,
            "rollout": rollout,
            "environment": "reverse",
            "example": 7,
            "status": SampleStatus.trained,
            "reward": 0.5,
            "advantage": 0.25,
            "rewards": {
                "overlap": FunctionReward(value=0.5, weight=0.8),
                "format": FunctionReward(value=1.0, weight=0.1),
            },
            "tokens": TokenCounts(prompt=11, completion=9),
            "turns": 1,
            "stop_condition": "done",
            "prompt": [{"role": "user", "content": "reverse: hello"}],
            "completion": [{"role": "assistant", "content": "olleh"}],
            "answer": "olleh",
            **values,
        }
    )


def groups(count: int = 3, rollouts: int = 2, **values: Any) -> list[list[SampleRecord]]:
    """Groups with ids g0, g1, ... and rollouts g0-r0, g0-r1, ..."""
    return [
        [record(f"g{g}", f"g{g}-r{r}", **({"example": g, "reward": r / rollouts} | values)) for r in range(rollouts)]
        for g in range(count)
    ]


class RangeObject:
    """An object that answers ranges and remembers them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int | None, int]] = []

    def read(self, uri: S3Uri, start: int | None, length: int) -> bytes:
        """As Store.get_range."""
        assert uri == URI
        self.asked.append((start, length))
        return self.data[-length:] if start is None else self.data[start : start + length]


def with_index(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The object with another compressed index, whose sizes are right."""
    length, mark = FOOTER.unpack(data[-FOOTER.size :])
    start = len(data) - FOOTER.size - length
    packed = change(data[start : start + length])
    magic, _ = HEADER.unpack(data[start - HEADER.size : start])
    head = HEADER.pack(magic, len(packed) + FOOTER.size)
    return data[: start - HEADER.size] + head + packed + FOOTER.pack(len(packed), mark)


def pairs(*rewards: float | None) -> list[tuple[SampleGroup, SampleRow]]:
    """Rollouts of one group with these rewards."""
    rows = [SampleRow(rollout=f"r{n}", status=SampleStatus.trained, reward=reward) for n, reward in enumerate(rewards)]
    group = SampleGroup(group="g0", environment="reverse", example=7, rows=rows)
    return [(group, row) for row in rows]
