"""Weights & Biases with its real client: offline runs, a server that is away, a client that hangs or dies."""

import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rlrun.api.base.rules import ADMITTED
from rlrun.api.run_sections.monitoring import REFUSED_BY_WANDB, Wandb
from rlrun.protocol.resolved import ResolvedRun
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun_orchestrator.data.reward_histogram import BOUNDS, histogram_values
from rlrun_orchestrator.reporting.wandb_client import MAX_WAITING_BYTES, OUTPUT_BYTES, WandbLog, api_key
from rlrun_orchestrator.reporting.wandb_process import to_wandb_values

from tests.support.ports import claimed_ports
from tests.support.run_processes import RUN_URI, World
from tests.support.run_store import RunStore

pytestmark = pytest.mark.slow

LAYOUT = RunLayout(S3Uri.parse(RUN_URI))
BLOCK = 32768

CLOSING_SECONDS = 300.0
"""The client starts and ends in seconds, but takes a minute on a busy machine."""


def records(data: bytes) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format behind a header of seven bytes, protobuf inside."""
    from wandb.proto import wandb_internal_pb2

    assert data[:4] == b":W&B"
    position, whole = 7, b""
    while position + 7 <= len(data):
        if BLOCK - position % BLOCK < 7:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def history(data: bytes) -> list[dict[str, Any]]:
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(data)
        if record.WhichOneof("record_type") == "history"
    ]


def wandb_files(store: RunStore) -> dict[str, bytes]:
    head = f"{RUN_URI}/wandb/"
    return {key.removeprefix(head): data for key, data in store.objects.items() if key.startswith(head)}


def wandb_log(
    store: RunStore, environment: dict[str, str] | None = None, wandb: dict[str, Any] | None = None, **more: Any
) -> WandbLog:
    environment = {"PATH": os.environ["PATH"], **(environment or {})}
    names = Wandb.model_validate({"project": "words", "entity": "team", **(wandb or {})}, context=ADMITTED)
    run = resolved()
    run = run.model_copy(update={"spec": run.spec.model_copy(update={"wandb": names})})
    return WandbLog(run, store, LAYOUT, environment=environment, **more)  # type: ignore[arg-type]


def resolved(**spec: Any) -> ResolvedRun:
    world = World(Path(), spec=spec)
    world.urls, world.trainer_url = {"words": "http://words"}, "http://trainer"
    return world.resolved()


@pytest.mark.proves("name")
@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ({"wandb": {}}, "run"),
        ({"wandb": {"project": "words"}, "name": "Reverse Text!"}, "Reverse Text!"),
        ({"wandb": {"project": "words", "name": "first try"}, "name": "Reverse Text!"}, "first try"),
    ],
)
def test_a_run_has_its_display_name_unless_it_has_one_for_wandb(spec: dict[str, Any], shown: str) -> None:
    log = WandbLog(resolved(**spec), RunStore(), LAYOUT)  # type: ignore[arg-type]
    assert log.arguments["name"] == shown


@pytest.mark.proves("wandb.project", "wandb.entity", "wandb.name")
async def test_a_whole_run_without_a_key_leaves_its_files_beside_its_artifacts(world: World) -> None:
    world.spec["wandb"] = {"project": "words", "entity": "team", "name": "first try"}
    world.settings["drain_deadline"] = CLOSING_SECONDS
    await world.start()
    assert await world.run(2 * CLOSING_SECONDS) == 0
    assert world.last_word.warnings == []
    (data,) = (data for name, data in wandb_files(world.store).items() if name.endswith(".wandb"))
    (run,) = (record.run for record in records(data) if record.WhichOneof("record_type") == "run")
    assert (run.project, run.entity, run.display_name, run.run_id) == ("words", "team", "first try", "uid-1")
    steps = history(data)
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5]
    assert steps[-1]["reward/mean"] == 0.4375
    assert steps[-1]["reward/histogram/_type"] == "histogram"
    assert sum(steps[-1]["reward/histogram/values"]) == 8
    assert "reward/histogram/bounds" not in steps[-1]


async def test_a_server_that_does_not_answer_makes_a_warning_and_the_run_is_kept_in_files() -> None:
    store = RunStore()
    with claimed_ports(1) as (port,):
        key = {"WANDB_API_KEY_1": "k" * 40, "WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_INIT_TIMEOUT": "2"}
        log = wandb_log(store, key)
        await log.start()
        log.log(1, {"reward/mean": 0.5})
        await log.close(CLOSING_SECONDS)
    assert log.problem is not None
    assert log.problem.reason == "WandbFailed"
    assert "wandb sync" in log.problem.message
    (data,) = (data for name, data in wandb_files(store).items() if name.endswith(".wandb"))
    assert [(row["reward/mean"], row["train/reward"]) for row in history(data)] == [(0.5, 0.5)], "and its alias"
    assert b"kkkk" not in b"".join(store.objects.values()), "the key is in no file"


@pytest.mark.proves("wandb.offline")
async def test_a_run_that_is_offline_sends_nothing_in_spite_of_a_key() -> None:
    """With a key the client would ask the address, which does not answer, and warn."""
    store = RunStore()
    with claimed_ports(1) as (port,):
        key = {"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": f"http://127.0.0.1:{port}"}
        log = wandb_log(store, key, wandb={"offline": True})
        await log.start()
        log.log(1, {"reward/mean": 0.5})
        await log.close(CLOSING_SECONDS)
    assert log.problem is None
    (data,) = (data for name, data in wandb_files(store).items() if name.endswith(".wandb"))
    assert [row["reward/mean"] for row in history(data)] == [0.5]


async def test_a_client_that_hangs_is_ended_and_never_waited_for() -> None:
    silent = (sys.executable, "-c", "import time; time.sleep(600)")
    log = wandb_log(RunStore(), command=silent)
    await log.start()
    line = {f"metric/{number}": 1.0 for number in range(1000)}
    for step in range(2 * MAX_WAITING_BYTES // len(json.dumps(line))):
        log.log(step, line)
    assert log.lost > 20
    assert log.problem is not None
    assert f"dropped lines: {log.lost}" in log.problem.message
    await log.close(1.0)
    assert log.problem is not None
    assert log.problem.reason == "WandbFailed"


@pytest.mark.parametrize("command", [("/nonexistent",), (sys.executable, "-c", "raise SystemExit(3)")])
async def test_a_client_that_cannot_start_is_a_warning(command: tuple[str, ...]) -> None:
    log = wandb_log(RunStore(), command=command)
    await log.start()
    log.log(1, {"x": 1.0})
    await log.close(5.0)
    assert log.problem is not None
    assert log.problem.reason == "WandbFailed"


async def test_names_that_the_client_refuses_leave_the_run_in_files() -> None:
    """Admission refuses those of today. A newer client may have other rules."""
    store = RunStore()
    log = wandb_log(store, wandb={"project": "team/project"})
    await log.start()
    log.log(1, {"reward/mean": 0.5})
    await log.close(CLOSING_SECONDS)
    assert log.problem is not None
    assert "Invalid project name 'team/project'" in log.problem.message
    assert "wandb sync" in log.problem.message
    (data,) = (data for name, data in wandb_files(store).items() if name.endswith(".wandb"))
    assert [row["reward/mean"] for row in history(data)] == [0.5]


@pytest.mark.parametrize("ends", ["before its first line", "later"])
async def test_a_client_that_ends_shows_its_last_words_without_the_key(ends: str) -> None:
    key = "k" * 40
    code = f"""
import json, os, sys
sys.stdin.readline()
if {ends!r} == "later":
    os.makedirs(os.environ["HOME"] + "/wandb/run-1")
    open(os.environ["HOME"] + "/wandb/run-1/run-1.wandb", "w").write("kept")
    print(json.dumps({{"mode": "online", "problem": None}}), flush=True)
    sys.stdin.readline()
print("Traceback", file=sys.stderr)
print("UsageError: no such team, says the server to", os.environ["WANDB_API_KEY"], file=sys.stderr)
raise SystemExit(3)
"""
    store = RunStore()
    log = wandb_log(store, {"WANDB_API_KEY": key}, command=(sys.executable, "-c", code))
    await log.start()
    log.log(1, {"x": 1.0})
    await log.close(CLOSING_SECONDS)
    assert log.problem is not None
    assert "exited with code 3: UsageError: no such team, says the server to (the key)" in log.problem.message
    assert "JSONDecodeError" not in log.problem.message
    assert wandb_files(store) == ({"run-1/run-1.wandb": b"kept"} if ends == "later" else {})


async def test_only_the_end_of_what_a_client_writes_is_kept() -> None:
    code = """
import json, sys
sys.stdin.readline()
print(json.dumps({"mode": "online", "problem": None}), flush=True)
print("x" * 2**20, file=sys.stderr)
for line in sys.stdin:
    print("x" * 600, file=sys.stderr)
print("the last line", file=sys.stderr)
raise SystemExit(3)
"""
    log = wandb_log(RunStore(), {"WANDB_API_KEY": "k" * 40}, command=(sys.executable, "-c", code))
    await log.start()
    for step in range(40):
        log.log(step, {"x": 1.0})
    await log.close(CLOSING_SECONDS)
    assert log.problem is not None
    assert log.problem.message.endswith("exited with code 3: the last line")
    assert len(log.output) == OUTPUT_BYTES


async def test_a_broken_client_is_a_warning_of_the_run_and_not_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun_orchestrator.reporting.wandb_client.WandbLog._spawn", _no_process)
    world.spec["wandb"] = {"project": "words"}
    await world.start()
    assert await world.run() == 0
    assert [w.reason for w in world.last_word.warnings] == ["WandbFailed"]
    assert len(world.trainer.batches) == 5


async def _no_process(self: WandbLog, folder: str) -> None:
    raise OSError("no room for another process")


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({}, None),
        ({"WANDB_API_KEY": "a", "WANDB_API_KEY_0": "b"}, "a"),
        ({"WANDB_API_KEY_10": "c", "WANDB_API_KEY_2": "b", "WANDB_API_KEY_0": ""}, "b"),
        ({"WANDB_API_KEY": " ", "WANDB_API_KEY_X": "no"}, None),
    ],
)
def test_the_key_is_the_first_that_is_not_empty(environment: dict[str, str], key: str | None) -> None:
    assert api_key(environment) == key


async def test_the_client_sees_neither_credentials_nor_other_secrets() -> None:
    code = "import json, os, sys; sys.stdin.readline(); " + (
        "print(json.dumps({'mode': 'offline', 'problem': ' '.join(sorted(os.environ))}), flush=True)"
    )
    environment = {"AWS_SECRET_ACCESS_KEY": "s", "WANDB_API_KEY_0": "k", "OTHER": "o"}
    log = wandb_log(RunStore(), environment, command=(sys.executable, "-c", code))
    await log.start()
    await log.close(5.0)
    assert log.problem is not None
    assert " WANDB_API_KEY" in log.problem.message
    for name in ("AWS", "OTHER", "WANDB_API_KEY_0"):
        assert name not in log.problem.message


@pytest.mark.parametrize("character", [*REFUSED_BY_WANDB, " ", ".", "é", "'"])
def test_projects_that_are_refused_are_those_that_the_client_refuses(character: str) -> None:
    from wandb.sdk.artifacts._validators import validate_project_name

    def refuses(check: Callable[[str], Any]) -> bool:
        try:
            check(f"a{character}b")
        except (ValueError, ValidationError):
            return True
        return False

    assert refuses(lambda name: Wandb(project=name)) == refuses(validate_project_name)


def test_histograms_get_finite_edges_and_other_lists_are_left_out() -> None:
    values = {"a": 1.0, "odd": [1.0], **histogram_values({"e": [0.0, 1.0]})}
    found = to_wandb_values(values, lambda counts, edges: (counts, edges))
    counts, edges = found["reward/histogram"]
    assert len(edges) == len(counts) + 1
    assert edges[1:-1] == list(BOUNDS)
    assert set(found) == {"a", "reward/histogram", "reward/e/histogram"}
