"""Messages between processes: what was sent arrives, and what is received runs no code."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from rlrun_trainer.runtime.messages import MessageFormat, Refusal


@dataclass(frozen=True)
class Load:
    folder: Path
    rate: float
    positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stop:
    pass


FORMAT: MessageFormat[Load | Stop] = MessageFormat(Load, Stop)
LOAD = Load(Path("/checkpoint"), 0.1 + 0.2, (1, 2))


class Harmful:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("value", [LOAD, Stop()])
def test_a_value_arrives_as_it_was(value: Load | Stop) -> None:
    assert FORMAT.decode(FORMAT.encode(value)) == value


@pytest.mark.parametrize("head", [b"", b"Load\n", b"Stop\n"])
def test_a_pickle_is_refused_and_not_loaded(tmp_path: Path, head: bytes) -> None:
    harm = pickle.dumps(Harmful(tmp_path / "made"))
    with pytest.raises(RuntimeError, match="another process"):
        FORMAT.decode(head + harm)
    assert not (tmp_path / "made").exists()
    pickle.loads(harm)
    assert (tmp_path / "made").exists(), "the pickle does no harm"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", "not a known class"),
        (b"Path\n{}", "not a known class"),
        (b"Load", "Load from another process is not valid"),
        (b'Load\n{"folder": "/checkpoint", "rate": "fast"}', "Load from another process is not valid"),
    ],
)
def test_a_message_of_another_form_is_refused(message: bytes, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        FORMAT.decode(message)


def test_a_refusal_is_the_error_that_was_raised() -> None:
    error = ProblemError(503, Problem(reason="NoFreeSlot", message="all 2 slots are taken"))
    arrived = MessageFormat(Refusal).decode(MessageFormat(Refusal).encode(Refusal.of(error))).error
    assert (arrived.status, arrived.problem) == (error.status, error.problem)
