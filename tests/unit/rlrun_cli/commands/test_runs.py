import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import rlrun_cli
import yaml
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLMODEL, RLRUN
from rlrun.kube.objects import Obj

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object


@pytest.fixture
def runs(api: FakeCluster) -> FakeCluster:
    spec = {"model": "a/b", "maxSteps": 10}
    status = {
        "phase": "Failed",
        "reason": "TrainerOutOfMemory",
        "message": "give it more memory",
        "restarts": 2,
        "progress": {"step": 3, "maxSteps": 10, "reward": 0.5},
        "conditions": [{"type": "TrainerReady", "status": "False", "reason": "TrainerOutOfMemory", "message": "m"}],
        "checkpoints": [{"step": 2, "name": "first-step-000002-abc", "uri": "s3://b/c"}],
    }
    first = spec | {"env": [{"id": "me/reverse"}]}
    api.put(custom_object(RLRUN, "first", created="2026-01-01T00:00:00Z", spec=first, status=status))
    api.put(custom_object(RLRUN, "second", created="2026-01-02T00:00:00Z", spec=spec))
    return api


def spec_of(api: FakeCluster, run: str) -> Obj:
    found = api.find("RLRun", run)
    assert found is not None
    return dict(found["spec"])


def test_list(rlrun: Rlrun, runs: FakeCluster) -> None:
    answer = rlrun("list")
    header, newest, oldest = answer.out.splitlines()
    assert header.split() == ["NAME", "PHASE", "STEP", "REWARD", "ETA", "RESTARTS", "MODEL", "DISPLAY", "AGE", "REASON"]
    assert newest.split()[:4] == ["second", "Pending", "0/10", "-"]
    assert oldest.split()[:6] == ["first", "Failed", "3/10", "0.500", "-", "2"]
    assert oldest.endswith("TrainerOutOfMemory")


@pytest.mark.proves("name")
def test_list_and_get_show_the_display_name(rlrun: Rlrun, api: FakeCluster) -> None:
    api.put(custom_object(RLRUN, "first", spec={"model": "a/b", "maxSteps": 10, "name": "Try no. 3"}))
    assert "Try no. 3" in rlrun("list").out
    assert "Try no. 3" in rlrun("get", "first").out


def test_list_of_all_namespaces_has_a_namespace_column(rlrun: Rlrun, runs: FakeCluster) -> None:
    other = custom_object(RLRUN, "third", spec={"model": "a/b", "maxSteps": 10})
    other["metadata"]["namespace"] = "lab"
    runs.put(other)
    answer = rlrun("list", "-A")
    assert answer.out.startswith("NAMESPACE")
    assert {line.split()[0] for line in answer.out.splitlines()[1:]} == {"team", "lab"}
    assert "third" not in rlrun("list").out


def test_list_in_machine_readable_formats(rlrun: Rlrun, runs: FakeCluster) -> None:
    found = json.loads(rlrun("list", "-o", "json").out)
    assert found["kind"] == "List"
    assert [i["metadata"]["name"] for i in found["items"]] == ["second", "first"]
    assert "managedFields" not in found["items"][0]["metadata"]
    assert rlrun("list", "-o", "name").out.split() == ["rlruns.rlrun.dev/second", "rlruns.rlrun.dev/first"]


def test_an_empty_list_is_not_an_error(rlrun: Rlrun) -> None:
    answer = rlrun("list")
    assert (answer.code, answer.out) == (0, "")
    assert "No runs in namespace team" in answer.err
    assert json.loads(rlrun("list", "-o", "json").out)["items"] == []


def test_get(rlrun: Rlrun, runs: FakeCluster) -> None:
    text = rlrun("get", "first").out
    for part in ("team/first", "Failed", "give it more memory", "3/10", "TrainerReady", "s3://b/c", "reverse"):
        assert part in text
    assert yaml.safe_load(rlrun("get", "first", "-o", "yaml").out)["metadata"]["name"] == "first"
    assert rlrun("get", "missing").code == 1


def test_get_shows_the_display_name_if_there_is_one(rlrun: Rlrun, runs: FakeCluster) -> None:
    assert "Name:" not in rlrun("get", "first").out
    named = runs.find("RLRun", "first")
    assert named is not None
    named["spec"]["name"] = "Reverse Text!"
    assert "Name:      Reverse Text!\n" in rlrun("get", "first").out


def test_get_shows_the_packages_that_the_run_trains_with(rlrun: Rlrun, runs: FakeCluster) -> None:
    assert "Environment packages" not in rlrun("get", "first").out
    found = runs.find("RLRun", "first")
    assert found is not None
    digest = f"sha256:{'ab' * 32}"
    found["status"]["environments"] = [{"id": "acme/reverse", "version": "1.2.0", "digest": digest}]
    text = rlrun("get", "first").out
    for part in ("Environment packages", "acme/reverse", "1.2.0", digest):
        assert part in text


def test_cluster_options_are_accepted_before_and_after_the_command(
    rlrun: Rlrun, runs: FakeCluster, chosen: list[Any]
) -> None:
    rlrun("-n", "one", "--context", "c", "list")
    rlrun("list", "-n", "two", "--kubeconfig", "/k")
    rlrun("-n", "one", "list", "-n", "two")
    assert chosen == [(None, "c", "one"), (Path("/k"), None, "two"), (None, None, "two")]


def test_stop(rlrun: Rlrun, runs: FakeCluster) -> None:
    answer = rlrun("stop", "second")
    assert answer.code == 0
    assert spec_of(runs, "second")["stop"] is True
    assert "nothing changed" in rlrun("stop", "first").err
    assert "stop" not in spec_of(runs, "first")


def test_delete_needs_confirmation(rlrun: Rlrun, runs: FakeCluster) -> None:
    assert rlrun("delete", "first", input="n\n").code == 1
    assert runs.find("RLRun", "first")
    refused = rlrun("delete", "first")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert rlrun("delete", "first", input="y\n").code == 0
    assert rlrun("delete", "second", "--yes").out == "rlruns.rlrun.dev/second deleted\n"
    assert runs.all("RLRun") == []


@pytest.mark.parametrize(("policy", "message"), [("Delete", "all its files in S3"), ("Retain", "files in S3 are kept")])
def test_the_delete_prompt_names_the_artifact_policy(
    rlrun: Rlrun, runs: FakeCluster, policy: str, message: str
) -> None:
    runs.put(custom_object(RLRUN, "first", spec=spec_of(runs, "first") | {"artifactPolicy": policy}))
    assert message in rlrun("delete", "first", input="n\n").err


def test_models(rlrun: Rlrun, api: FakeCluster) -> None:
    small = {"id": "z/b", "source": "s3://x/y", "trainer": {"gpus": 0}, "inference": {"gpus": 0}}
    large = {"id": "a/a", "source": "hf://a/a", "seqLen": 4096, "inference": {"replicas": 2, "gpus": 4}}
    api.put(custom_object(RLMODEL, "b", spec=small))
    api.put(custom_object(RLMODEL, "a", spec=large))
    _, first, second = rlrun("models").out.splitlines()
    assert first.split()[:2] == ["a/a", "4096"]
    assert "1x1 GPU" in first
    assert "2x4 GPU" in first
    assert second.count("1x CPU") == 2


@pytest.fixture
def artifacts(api: FakeCluster) -> FakeCluster:
    api.put(custom_object(RLRUN, "first", spec={"model": "a/b"}))
    api.put(custom_object(RLRUN, "empty", spec={"model": "a/b"}))
    for kind in (RLCHECKPOINT, RLADAPTER):
        for step in (10, 9):
            spec = {"runName": "first", "step": step, "uri": f"s3://b/{step}"}
            status = {"phase": "Ready", "sizeBytes": 2048, "reward": 0.5}
            api.put(custom_object(kind, f"first-{step}", spec=spec, status=status))
        api.put(custom_object(kind, "other-1", spec={"runName": "other", "step": 1, "uri": "s3://b/o"}))
    return api


@pytest.mark.parametrize("command", ["checkpoints", "adapters"])
def test_artifacts_are_sorted_by_step(rlrun: Rlrun, artifacts: FakeCluster, command: str) -> None:
    header, *rows = rlrun(command, "first").out.splitlines()
    assert [r.split()[0] for r in rows] == ["first-9", "first-10"]
    assert "2.0 KiB" in rows[0]
    assert ("DEPLOYMENT" in header) == (command == "adapters")
    assert ("ID" in header.split()) == ("cp_team.first-9" in rows[0]) == (command == "checkpoints")
    assert len(rlrun(command).out.splitlines()) == 4


@pytest.mark.parametrize("command", ["checkpoints", "adapters"])
def test_an_unknown_run_is_an_error_one_without_artifacts_is_not(
    rlrun: Rlrun, artifacts: FakeCluster, command: str
) -> None:
    assert rlrun(command, "empty").code == 0
    assert rlrun(command, "frist").code == 1


def test_init_never_overwrites(rlrun: Rlrun, tmp_path: Path) -> None:
    target = tmp_path / "rl.toml"
    assert rlrun("init", target).code == 0
    text = target.read_text()
    again = rlrun("init", target)
    assert again.code == 2
    assert "already exists" in again.err
    assert target.read_text() == text
    assert rlrun("init", tmp_path / "no" / "rl.toml").code == 2


@pytest.mark.parametrize(
    "command",
    [[], ["init"], ["run"], ["list"], ["get"], ["follow"], ["logs"], ["stop"], ["delete"], ["models"], ["checkpoints"],
     ["adapters"], ["env"], ["env", "push"]],
)  # fmt: skip
def test_every_command_has_help_with_examples(rlrun: Rlrun, command: list[str]) -> None:
    answer = rlrun(*command, "--help")
    assert answer.code == 0
    assert command == ["env"] or "rlrun" in answer.out.split("Usage")[1].replace("root", "", 1)
    assert command in ([], ["env"]) or "Examples:" in answer.out


@pytest.mark.parametrize("module", sorted(p.stem for p in Path(rlrun_cli.__file__).parent.glob("*.py")))
def test_help_texts_contain_no_markup(module: str) -> None:
    # The renderer of help texts drops text that looks like a tag, such as `[[env]]`.
    found = importlib.import_module(f"rlrun_cli.{module}") if module != "__main__" else rlrun_cli
    texts = [value for name, value in vars(found).items() if name.endswith("EPILOG")]
    texts += [
        f.__doc__ or ""
        for f in vars(found).values()
        if inspect.isfunction(f) and "ctx" in inspect.signature(f).parameters
    ]
    assert [text for text in texts if re.search(r"\[[a-z/]", text)] == []
