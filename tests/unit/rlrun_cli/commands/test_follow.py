from typing import Any

import pytest
from rich.console import Console
from rlrun.kube.objects import Obj
from rlrun_cli.commands.follow import PATIENCE, ProgressDisplay, RewardHistory, describe, look_until_finished
from rlrun_cli.remote.run_summary import RunSummary, summarize
from rlrun_cli.terminal.errors import CliError, NotFoundError, UnreachableError

from tests.unit.rlrun_cli.conftest import FakeCluster, Rlrun


def look(phase: str, step: int = 0, reward: float | None = None, **status: Any) -> Obj:
    progress = {"step": step, "maxSteps": 4, "reward": reward, "etaSeconds": 90.0 if phase == "Running" else None}
    return {
        "metadata": {"name": "first", "namespace": "team"},
        "spec": {"maxSteps": 4},
        "status": {"phase": phase, "progress": progress, **status},
    }


TO_THE_END: list[Obj | BaseException] = [
    look("Pending", reason="WaitingForTrainer", message="the trainer is loading"),
    look("Running", 1, 0.25),
    look("Running", 1, 0.25),
    look("Running", 2, 0.5),
    look("Completed", 4, 0.75),
]


def test_lines_without_a_terminal(rlrun: Rlrun, api: FakeCluster) -> None:
    api.looks = list(TO_THE_END)
    answer = rlrun("follow", "first")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert len(lines) == 4, "a line for each change, none for the same again"
    assert "WaitingForTrainer: the trainer is loading" in lines[0]
    assert "step 2/4" in lines[2]
    assert "reward 0.500" in lines[2]
    assert "about 90s left" in lines[2]
    assert "rlrun adapters first -n team" in answer.err


@pytest.mark.parametrize("phase", ["Failed", "Stopped"])
def test_any_other_end_is_a_failure(rlrun: Rlrun, api: FakeCluster, phase: str) -> None:
    api.looks = [look("Running", 1, 0.1), look(phase, 1, 0.1, reason="TrainerOutOfMemory", message="needs more")]
    answer = rlrun("follow", "first")
    assert answer.code == 1
    assert f"first is {phase} at step 1/4: TrainerOutOfMemory: needs more" in answer.err


def test_ctrl_c_detaches_and_stops_nothing(rlrun: Rlrun, api: FakeCluster) -> None:
    api.looks = [look("Running", 1, 0.1), KeyboardInterrupt()]
    answer = rlrun("follow", "first")
    assert answer.code == 130
    assert "the run goes on" in answer.err
    assert "rlrun stop first -n team" in answer.err
    assert all(call.startswith("get") for call in api.calls)


def test_unknown_run_is_said_at_once(rlrun: Rlrun) -> None:
    answer = rlrun("follow", "nobody")
    assert answer.code == 1
    assert "does not exist" in answer.err


class Shown:
    def __init__(self) -> None:
        self.views: list[RunSummary] = []
        self.notes: list[str] = []

    def show(self, seen: RunSummary, curve: RewardHistory) -> None:
        self.views.append(seen)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None: ...


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_short_outage_is_waited_out(api: FakeCluster) -> None:
    gone = UnreachableError("no answer")
    api.looks = [look("Running", 1), gone, gone, look("Completed", 4)]
    shown, clock = Shown(), Clock()
    assert look_until_finished(api, "first", shown, clock.sleep, clock).phase == "Completed"
    assert len(shown.notes) == 1


def test_a_long_outage_ends_the_following(api: FakeCluster) -> None:
    api.looks = [look("Running", 1), UnreachableError("no answer")]
    clock = Clock()
    with pytest.raises(UnreachableError):
        look_until_finished(api, "first", Shown(), clock.sleep, clock)
    assert PATIENCE < clock.now < PATIENCE + 5


def test_deleted_while_followed(api: FakeCluster) -> None:
    api.looks = [look("Running", 1), NotFoundError("gone")]
    with pytest.raises(CliError, match="deleted while"):
        look_until_finished(api, "first", Shown(), lambda s: None)


def test_a_rewind_forgets_the_steps_above() -> None:
    curve = RewardHistory()
    for step, reward in [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25)]:
        curve.add(summarize(look("Running", step, reward)))
    assert curve.rewards == {1: 0.1, 2: 0.25}


def test_bar_on_a_terminal() -> None:
    console = Console(force_terminal=True, width=120, record=True, legacy_windows=False)
    bar, curve = ProgressDisplay("first", console), RewardHistory()
    for item in TO_THE_END:
        seen = summarize(item)  # type: ignore[arg-type]
        curve.add(seen)
        bar.show(seen, curve)
    bar.close()
    text = console.export_text()
    assert "Completed" in text
    assert "4/4" in text
    assert "reward 0.750" in text
    assert "WaitingForTrainer: the trainer is loading" in text


def test_a_message_with_brackets_is_shown_as_it_is() -> None:
    assert "[/red] [env]" in describe(summarize(look("Pending", message="[/red] [env]", reason="X")), RewardHistory())
    bar = ProgressDisplay("[/x]", Console(force_terminal=True, width=120))
    bar.show(summarize(look("Pending", message="[/red]", reason="[/X]")), RewardHistory())
    bar.close()
