import time
from typing import Any

import pytest
from rlrun.constants import Role
from rlrun.kube.errors import UNREACHABLE, ApiError
from rlrun.kube.kinds import RLADAPTER, RLRUN
from rlrun.kube.objects import Obj
from rlrun_cli.commands import logs
from rlrun_cli.commands.logs import LogFollower
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.logs import LogSelection
from rlrun_cli.terminal.errors import CliError

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_s3 import InMemoryStore
from tests.unit.rlrun_cli.conftest import custom_object


def pod(
    name: str,
    *containers: str,
    created: str = "2026-01-01T00:00:00Z",
    default: str | None = None,
    role: str = "orchestrator",
) -> Obj:
    names = containers or ("main",)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {"rlrun.dev/run": "first", "rlrun.dev/role": role},
            "creationTimestamp": created,
            "annotations": {"kubectl.kubernetes.io/default-container": default} if default else {},
        },
        "spec": {"containers": [{"name": n} for n in names]},
        "status": {"containerStatuses": [{"name": n, "restartCount": i} for i, n in enumerate(names)]},
    }


@pytest.fixture
def one(api: FakeCluster) -> FakeCluster:
    api.put(custom_object(RLRUN, "first", spec={}, status={"phase": "Running"}))
    api.put(pod("first-orchestrator-a1-x", "orchestrator"))
    api.logs["first-orchestrator-a1-x/orchestrator"] = b"one\n[two]\nthree\n"
    api.put(pod("first-trainer-x", "trainer", role="trainer"))
    api.logs["first-trainer-x/trainer"] = b"of the trainer\n"
    return api


def test_lines_of_one_pod_have_no_prefix(rlrun: Rlrun, one: FakeCluster) -> None:
    assert rlrun("logs", "first").out == "one\n[two]\nthree\n"
    assert rlrun("logs", "first", "--tail", "1").out == "three\n"


def test_lines_with_a_text_are_selected(rlrun: Rlrun, one: FakeCluster) -> None:
    assert rlrun("logs", "first", "--search", "[TW").out == "[two]\n"
    assert rlrun("logs", "first", "--search", "four").out == ""


def test_lines_of_several_pods_have_a_prefix(rlrun: Rlrun, one: FakeCluster) -> None:
    # By age, neither by name nor as listed.
    one.put(pod("b", created="2026-01-01T00:00:00Z", role="inference"))
    one.put(pod("a", created="2026-01-02T00:00:00Z", role="inference"))
    one.logs |= {"a/main": b"x\n", "b/main": b"y\n"}
    assert rlrun("logs", "first", "--role", "inference").out == "[b] y\n[a] x\n"


def test_a_log_does_not_control_the_terminal(rlrun: Rlrun, one: FakeCluster) -> None:
    one.logs["first-orchestrator-a1-x/orchestrator"] = "a\tb\x1b]52;c;eA==\x07 \x9b2Jc\r\n".encode()
    assert rlrun("logs", "first").out == "a\tb c\n"


COLOURED = (
    "\x1b[32mINFO\x1b[0m step\r 10%|#  |\x1b[K\r 20%|## |\x1b(B\x1b[m\n\n"
    "end \x1b]8;;http://x\x1b\\link\x1b]8;;\x07 \x1b]0;open\n"
)
SHOWN = ["INFO step", " 10%|#  |", " 20%|## |", "", "end link ]0;open"]


def test_a_coloured_log_with_a_progress_bar_is_readable(rlrun: Rlrun, one: FakeCluster) -> None:
    one.logs["first-orchestrator-a1-x/orchestrator"] = COLOURED.encode()
    assert rlrun("logs", "first").out.splitlines() == SHOWN
    one.put(pod("y", "orchestrator", created="2026-01-02T00:00:00Z"))
    one.logs["y/orchestrator"] = COLOURED.encode()
    pods = ["[first-orchestrator-a1-x] ", "[y] "]
    assert rlrun("logs", "first").out.splitlines() == [name + line for name in pods for line in SHOWN]


def test_a_coloured_copy_is_readable(rlrun: Rlrun, ended: FakeCluster, s3: InMemoryStore) -> None:
    s3.objects["s3://b/p/team/uid-first/logs/attempt-2/first-orchestrator-a2-w/orchestrator.log"] = COLOURED.encode()
    assert rlrun("logs", "first").out.splitlines() == SHOWN


def test_no_pod_is_explained(rlrun: Rlrun, api: FakeCluster) -> None:
    api.put(custom_object(RLRUN, "first", spec={}, status={"phase": "Pending"}))
    answer = rlrun("logs", "first", "--role", "trainer")
    assert answer.code == 1
    assert "no trainer pod" in answer.err
    assert "rlrun get first" in answer.err


@pytest.mark.parametrize("words", [(), ("-f",), ("--role", "trainer")], ids=" ".join)
@pytest.mark.parametrize("phase", ["Running", "Stopped"])
def test_a_run_of_a_clients_program_has_no_logs(
    rlrun: Rlrun, api: FakeCluster, words: tuple[str, ...], phase: str
) -> None:
    api.put(custom_object(RLRUN, "first", spec={"driver": "Client"}, status={"phase": phase}))
    answer = rlrun("logs", "first", *words)
    assert answer.code == 1
    assert "a client's program trains it" in answer.err


KEPT = {
    "attempt-1/first-trainer-7d9-abc/trainer.log": "a1",
    "attempt-2/first-trainer-7d9-abc/trainer.log": "one\ntwo\nthree\n",
    "attempt-2/first-trainer-7d9-abc/trainer.previous.log": "died\n",
    "attempt-2/first-trainer-7d9-abc/fetch-model.log": "fetched\n",
    "attempt-2/first-inference-5c-x/vllm.log": "x\n",
    "attempt-2/first-inference-5c-y/vllm.log": "y\n",
    "attempt-2/first-inference-5c-y/sidecar.log": "side\n",
    "attempt-2/first-env-0-7-z/environment.log": "train\n",
    "attempt-2/first-eval-1-7-z/environment.log": "eval\n",
    "attempt-2/first-orchestrator-a2-w/orchestrator.log": "over\n",
}


@pytest.fixture
def ended(api: FakeCluster, s3: InMemoryStore) -> FakeCluster:
    """A finished run without pods."""
    api.put(custom_object(RLRUN, "first", spec={}, status={"phase": "Completed"}))
    uri = "s3://b/p/team/uid-first/adapters/step-000004"
    api.put(custom_object(RLADAPTER, "first-4", spec={"runName": "first", "runUid": "uid-first", "uri": uri}))
    for name, text in KEPT.items():
        s3.objects[f"s3://b/p/team/uid-first/logs/{name}"] = text.encode()
    return api


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "over\n"),
        (["--role", "trainer"], "one\ntwo\nthree\n"),
        (["--role", "trainer", "--tail", "2"], "two\nthree\n"),
        (["--role", "trainer", "--tail", "9"], "one\ntwo\nthree\n"),
        (["--role", "trainer", "-p"], "died\n"),
        (["--role", "trainer", "--attempt", "1"], "a1\n"),
        (["--role", "trainer", "-f"], "one\ntwo\nthree\n"),
        (["--role", "inference"], "[first-inference-5c-x] x\n[first-inference-5c-y] y\n"),
        (["--role", "environment"], "[first-env-0-7-z] train\n[first-eval-1-7-z] eval\n"),
    ],
)
def test_copies_are_read_after_the_end(rlrun: Rlrun, ended: FakeCluster, options: list[str], expected: str) -> None:
    answer = rlrun("logs", "first", *options)
    assert (answer.code, answer.out) == (0, expected), answer.err


def test_stored_logs_of_a_deleted_run_are_printed_if_its_name_is_unambiguous(rlrun: Rlrun, ended: FakeCluster) -> None:
    del ended.objects["RLRun", "team", "first"]
    assert rlrun("logs", "first").out == "over\n"
    other = {"runName": "first", "runUid": "another", "uri": "s3://b/p/team/another/adapters/s"}
    ended.put(custom_object(RLADAPTER, "other", spec=other))
    answer = rlrun("logs", "first")
    assert answer.code == 1
    assert "2 deleted runs with that name" in answer.err
    assert "run second does not exist" in rlrun("logs", "second").err


def test_logs_are_read_from_existing_pods_before_stored_copies(rlrun: Rlrun, ended: FakeCluster) -> None:
    ended.put(pod("first-orchestrator-a2-w", "orchestrator"))
    ended.logs["first-orchestrator-a2-w/orchestrator"] = b"from the pod\n"
    assert rlrun("logs", "first").out == "from the pod\n"
    assert rlrun("logs", "first", "--attempt", "2").out == "over\n"


def test_a_missing_copy_is_an_error(rlrun: Rlrun, ended: FakeCluster) -> None:
    answer = rlrun("logs", "first", "--role", "trainer", "--attempt", "7")
    assert answer.code == 1
    assert "no log of a trainer pod in attempt 7" in answer.err
    assert "attempt 1: first-trainer-7d9-abc" in answer.err
    del ended.objects["RLAdapter", "team", "first-4"]
    assert rlrun("logs", "first").out == "over\n", "a run needs no artifact to be found"


def follow(remote: RemoteCluster, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.05)
    follower = LogFollower(
        remote, "first", LogSelection(Role.trainer, tail=options.get("tail")), lambda seconds: time.sleep(0.01)
    )
    return list(follower.lines())


def test_following_waits_for_the_start_and_survives_an_interruption(
    api: FakeCluster, remote: RemoteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(pod("p", role="trainer"))
    api.answers["read the log of team/p (main)"] = [
        ApiError(400, "BadRequest", 'container "main" is waiting to start'),
        [b"one\ntw", b"o\n", ApiError(0, UNREACHABLE, "cut")],
        [b"one\ntwo\nthree\n"],
    ]
    running = custom_object(RLRUN, "first", status={"phase": "Running"})
    api.answers["get RLRun team/first"] = [*[running] * 6, {**running, "status": {"phase": "Completed"}}]
    assert follow(remote, monkeypatch) == ["one", "two", "three"]


def test_following_a_run_without_pods_times_out(
    api: FakeCluster, remote: RemoteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "START_SECONDS", 0.2)
    api.put(custom_object(RLRUN, "first", spec={}, status={"phase": "Pending"}))
    with pytest.raises(CliError, match="no trainer pod"):
        follow(remote, monkeypatch)


@pytest.fixture
def environments(one: FakeCluster) -> FakeCluster:
    spec = {"env": [{"id": "me/math"}, {"id": "me/code", "name": "x/1"}], "eval": {"env": [{"id": "me/math"}]}}
    one.put(custom_object(RLRUN, "first", spec=spec, status={"phase": "Running"}))
    for component in ("env-0", "env-1", "eval-0"):
        item = pod(component, role="environment")
        item["metadata"]["labels"]["rlrun.dev/component"] = component
        one.put(item)
        one.logs[f"{component}/main"] = f"of {component}\n".encode()
    return one


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ("math", "[env-0] of env-0\n[eval-0] of eval-0\n"),
        ("me/math", "[env-0] of env-0\n[eval-0] of eval-0\n"),
        ("math/0", "of env-0\n"),
        ("me/math/1", "of eval-0\n"),
        ("code", "of env-1\n"),
        ("x/1/0", "of env-1\n"),
    ],
)
def test_an_environment_is_selected_by_its_name(
    rlrun: Rlrun, environments: FakeCluster, wanted: str, shown: str
) -> None:
    assert rlrun("logs", "first", "--env", wanted).out == shown


@pytest.mark.parametrize("wanted", ["nothing", "math/2", ""])
def test_an_environment_that_does_not_exist_is_refused_with_those_that_do(
    rlrun: Rlrun, environments: FakeCluster, wanted: str
) -> None:
    answer = rlrun("logs", "first", "--env", wanted)
    assert answer.code == 2
    assert "me/math, x/1" in answer.err
    assert rlrun("logs", "first", "--env", "math", "--role", "trainer").code == 2


def test_since_is_passed_on(rlrun: Rlrun, one: FakeCluster) -> None:
    assert rlrun("logs", "first", "--since", "1h30m").code == 0
    assert one.requests[-1].query["sinceSeconds"] == "5400"


@pytest.mark.parametrize("text", ["", "10", "m", "0s", "10 m", "1x"])
def test_what_is_no_time_is_refused(rlrun: Rlrun, one: FakeCluster, text: str) -> None:
    assert rlrun("logs", "first", "--since", text).code == 2


def test_copies_have_no_times(rlrun: Rlrun, one: FakeCluster) -> None:
    answer = rlrun("logs", "first", "--since", "10m", "--attempt", "1")
    assert answer.code == 1
    assert "--tail" in answer.err
