import json
import threading
from pathlib import Path
from typing import Any

import pytest
from rlrun.installation.checks import Finding
from rlrun.kube import requests
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP, DEPLOYMENT, RESOURCE_QUOTA, RLMODEL, RLRUN
from rlrun_cli.commands.doctor import show
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.diagnosis import checks
from rlrun_cli.remote.diagnosis.checks import exhausted_resources
from rlrun_cli.remote.probe import SERVED_KINDS

from tests.support.command_line import Rlrun, call
from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object

KINDS = str(requests.get(SERVED_KINDS, None, ""))
REVIEW = "create SelfSubjectAccessReview *"
SERVER = "get the proxy/rlrun/v1/storage of Service rlrun-system/rlrun-server:http"


@pytest.fixture
def healthy(api: FakeCluster) -> FakeCluster:
    """A cluster in which all is well."""
    names = ("rlruns", "rlmodels", "rlcheckpoints", "rladapters")
    api.answers[KINDS] = [{"resources": [{"name": name} for name in names]}]
    api.answers[REVIEW] = [{"status": {"allowed": True}}]
    api.answers[SERVER.replace("storage", "whoami")] = [{"user": "ann"}]
    api.answers[SERVER] = [{"bucket": "b"}]
    api.answers["create the token of ServiceAccount team/rlrun-user"] = [
        {"status": {"token": "t", "expirationTimestamp": "2099-01-01T00:00:00Z"}}
    ]
    labels = {"app.kubernetes.io/name": "rlrun", "app.kubernetes.io/component": "operator"}
    operator = custom_object(DEPLOYMENT, "rlrun-operator", status={"readyReplicas": 1})
    operator["metadata"]["labels"] = labels
    api.put(operator)
    found = custom_object(CONFIG_MAP, "rlrun-server", data={"service": "rlrun-system/rlrun-server:http"})
    found["metadata"] |= {"namespace": "kube-public", "labels": {"app.kubernetes.io/version": "9.9"}}
    api.put(found)
    api.put(custom_object(RLMODEL, "a", spec={"id": "a/a"}, status={"observedGeneration": 1}))
    return api


def test_a_healthy_cluster_has_a_line_per_check(rlrun: Rlrun, healthy: FakeCluster) -> None:
    answer = rlrun("doctor")
    assert answer.code == 0, answer.out
    assert [line.split()[:2] for line in answer.out.splitlines()] == [
        ["ok", f"{name}:"] for name in ("kinds", "rights", "operator", "tenant", "rlrun-server", "models", "capacity")
    ]


@pytest.mark.parametrize(
    ("published", "labels", "text", "hint"),
    [
        ({"namespaceLabel": "a.b/c=d"}, {"a.b/c": "e"}, "lacks the tenant label", "label namespace team a.b/c=d"),
        ({"namespaceLabel": "a.b/c=d"}, {"a.b/c": "d"}, "has the tenant label a.b/c=d", ""),
        ({"namespaces": "one,two"}, {}, "only one, two", "operator.watchNamespaces"),
        ({"namespaces": "one,team"}, {}, "serves namespace team", ""),
    ],
)
def test_a_namespace_that_is_not_a_tenant_is_named_with_the_label(
    rlrun: Rlrun, healthy: FakeCluster, published: dict[str, str], labels: dict[str, str], text: str, hint: str
) -> None:
    healthy.held("ConfigMap", "rlrun-server", "kube-public")["data"] |= published
    healthy.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}})
    answer = rlrun("doctor")
    if hint:
        assert_problem(answer, "tenant", text, hint)
    else:
        assert text in answer.out


def test_escape_sequences_of_the_cluster_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show([Finding("models", "a\x1b[2J\x1b]0;title\x07", "do \x1b[31m")])
    assert "\x1b" not in capsys.readouterr().out


def test_an_upgrade_is_checked_only_when_asked_for(rlrun: Rlrun, healthy: FakeCluster) -> None:
    healthy.put(custom_object(RLMODEL, "a", spec={"id": "a/a", "source": "hf://a/a"}, status={"observedGeneration": 1}))
    assert rlrun("doctor").code == 0
    assert_problem(rlrun("doctor", "--upgrade"), "RLModels", "RLModel a: spec.source", "before the upgrade")


def assert_problem(answer: Any, name: str, text: str, hint: str) -> None:
    assert answer.code == 1
    lines = answer.out.splitlines()
    (index,) = [n for n, line in enumerate(lines) if line.startswith("wrong")]
    assert lines[index].startswith(f"wrong  {name}: ")
    assert text in lines[index]
    assert hint in lines[index + 1]


def test_without_an_api_server_nothing_else_is_checked(rlrun: Rlrun, healthy: FakeCluster) -> None:
    healthy.answers[KINDS] = [ApiError(0, "Unreachable", "the API server does not answer")]
    answer = rlrun("doctor")
    assert_problem(answer, "kinds", "does not answer", "--context")
    assert len(answer.out.splitlines()) == 2


@pytest.mark.parametrize("missing", [ApiError(404, "404", "page not found"), {"resources": [{"name": "rlruns"}]}])
def test_missing_kinds(rlrun: Rlrun, healthy: FakeCluster, missing: Any) -> None:
    healthy.answers[KINDS] = [missing]
    assert_problem(rlrun("doctor"), "kinds", "does not serve rladapters", "install or upgrade the rlrun chart")


def test_expired_credentials(rlrun: Rlrun, healthy: FakeCluster) -> None:
    healthy.answers[KINDS] = [ApiError(401, "Unauthorized", "Unauthorized")]
    assert_problem(rlrun("doctor"), "kinds", "rejected your credentials", "log in again")


def test_missing_rights_are_named(rlrun: Rlrun, healthy: FakeCluster) -> None:
    yes, no = {"status": {"allowed": True}}, {"status": {"allowed": False}}
    healthy.answers[REVIEW] = [yes, no, yes, no, yes]
    assert_problem(rlrun("doctor"), "rights", "you may not create rlruns, get rlruns/metrics in", "`edit` role")


@pytest.mark.parametrize(("answers", "text"), [(0, "no ready pod"), (None, "no operator is installed")])
def test_an_operator_that_is_not_there(rlrun: Rlrun, healthy: FakeCluster, answers: int | None, text: str) -> None:
    operator = healthy.find("Deployment", "rlrun-operator")
    assert operator is not None
    operator["status"]["readyReplicas"] = answers
    if answers is None:
        operator["metadata"]["labels"] = {}
    assert_problem(rlrun("doctor"), "operator", text, "")


def test_an_operator_that_the_user_may_not_see_is_not_a_problem(rlrun: Rlrun, healthy: FakeCluster) -> None:
    healthy.answers["list deployments"] = [ApiError(403, "Forbidden", "no")]
    answer = rlrun("doctor")
    assert answer.code == 0
    assert "not visible" in answer.out


def test_a_server_that_does_not_answer(rlrun: Rlrun, healthy: FakeCluster) -> None:
    healthy.answers[SERVER] = [ApiError(403, "NotAllowed", "no rights in team")]
    assert_problem(rlrun("doctor"), "rlrun-server", "no rights in team", "platform team")


def test_a_server_that_signs_nothing(rlrun: Rlrun, healthy: FakeCluster) -> None:
    healthy.answers[SERVER] = [{"bucket": "b", "problem": "the S3 server cannot isolate tenants"}]
    assert_problem(rlrun("doctor"), "rlrun-server", "cannot isolate tenants", "docs/security.md")


def test_no_model(rlrun: Rlrun, healthy: FakeCluster) -> None:
    model = custom_object(RLMODEL, "a", spec={"id": "a/a"})
    healthy.put(model)
    assert_problem(rlrun("doctor"), "models", "RLModels that the operator has checked: 0 of 1", "operator")


def test_a_used_up_quota(rlrun: Rlrun, healthy: FakeCluster) -> None:
    status = {"hard": {"pods": "4", "cpu": "8"}, "used": {"pods": "4", "cpu": "1"}}
    healthy.put(custom_object(RESOURCE_QUOTA, "q", status=status))
    healthy.put(custom_object(RLRUN, "r", spec={}, status={"phase": "Queued"}))
    assert_problem(rlrun("doctor"), "capacity", "pods 4/4", "larger quota")


def test_a_check_that_hangs_is_a_problem(remote: RemoteCluster, healthy: FakeCluster) -> None:
    end = threading.Event()

    def hang(api: RemoteCluster) -> str:
        end.wait(60)
        return "done"

    try:
        first, second = checks.run(remote, {"slow": hang, "kinds": checks.check_api}, 0.2)
    finally:
        end.set()
    assert first.is_problem
    assert "no response within" in first.text
    assert not second.is_problem


def test_the_checks_for_gpus_follow_the_others(rlrun: Rlrun, healthy: FakeCluster) -> None:
    operator = healthy.find("Deployment", "rlrun-operator")
    assert operator is not None
    healthy.put({**operator, "spec": {"template": {"spec": {}}}})
    answer = rlrun("doctor", "--gpu", ticks=30.0)
    assert answer.code == 1
    lines = [line.split(":")[0].split(maxsplit=1)[1] for line in answer.out.splitlines() if "do:" not in line[:11]]
    assert lines[7:] == ["gpus", "driver", "runtime classes", "pull secrets", "volumes", "network"]
    assert "do: install the vendor's device plugin" in answer.out


def test_version(rlrun: Rlrun, healthy: FakeCluster) -> None:
    shown = json.loads(rlrun("version", "-o", "json").out)
    assert shown == {"client": "0.2.0", "platform": "9.9", "api": "rlrun.dev/v1alpha1"}
    assert rlrun("version", "--client").out == "client:   0.2.0\n"
    healthy.answers[KINDS] = [ApiError(404, "404", "page not found")]
    assert "not installed" in rlrun("version").out
    healthy.answers[KINDS] = [ApiError(0, "Unreachable", "the API server does not answer")]
    away = rlrun("version")
    assert (away.code, away.out) == (0, "client:   0.2.0\n"), "the program's own version needs no cluster"
    assert "does not answer" in away.err


@pytest.mark.parametrize(
    ("name", "used", "hard", "is_used_up"),
    [
        ("pods", "4", "4", True),
        ("pods", "5", "4", True),
        ("pods", "3", "4", False),
        ("services.nodeports", "0", "0", False),
        ("services.nodeports", "1", "1", True),
        ("pods", "0", "0", True),
        ("requests.cpu", "0", "0", True),
        ("limits.memory", "0", "0", True),
        ("requests.nvidia.com/gpu", "0", "0", True),
        ("requests.memory", "4Gi", "4Gi", True),
        ("requests.memory", "4Gi", "8Gi", False),
    ],
)
def test_quotas_that_keep_a_run_from_starting(name: str, used: str, hard: str, is_used_up: bool) -> None:
    quota = {"status": {"used": {name: used}, "hard": {name: hard}}}
    assert exhausted_resources(quota) == ([f"{name} {used}/{hard}"] if is_used_up else [])


def test_the_version_of_the_program_needs_no_kubeconfig(tmp_path: Path) -> None:
    answer = call("version", "--kubeconfig", tmp_path / "none")
    assert (answer.code, answer.out) == (0, "client:   0.2.0\n")
    assert "does not exist" in answer.err
