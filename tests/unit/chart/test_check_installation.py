"""The checks of `helm test`: each passes, and each fails with its cause when what it checks is broken."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store

from tests.support.seaweedfs import S3Server
from tests.support.source_tree import PYTHONPATH
from tests.unit.chart.conftest import Helm, Object, Render
from tests.unit.chart.test_render import pod_templates

RUN = {
    "apiVersion": "rlrun.dev/v1alpha1",
    "kind": "RLRun",
    "metadata": {"generateName": "test-", "namespace": "team"},
    "spec": {"model": "a/b"},
}
RUNS = "/apis/rlrun.dev/v1alpha1/namespaces/team/rlruns"

pytestmark = pytest.mark.slow


def check(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    own = {"CHECK_SECONDS": "0.1", "PYTHONPATH": PYTHONPATH, "PATH": os.environ["PATH"], **variables}
    command = [sys.executable, "-m", "rlrun.installation.checks", *arguments]
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def answers() -> dict[str, tuple[int, Any]]:
    """The body of each request that the server knows. The server adds those that it got."""
    return {}


@pytest.fixture
def server(answers: dict[str, tuple[int, Any]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = answers.get(f"{self.command} {self.path}", (404, {}))
            answers[f"got {self.command}"] = (status, self.path)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as started:
        Thread(target=started.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{started.server_port}"
        started.shutdown()


def test_readyz(server: str, answers: dict[str, tuple[int, Any]]) -> None:
    urls = (f"{server}/readyz", f"{server}/storez")
    broken = check("readyz", *urls)
    assert broken.returncode == 1
    assert f"wrong  readyz: {urls[0]}: status 404" in broken.stderr
    assert "do: read the log of the pod behind this URL, and check NetworkPolicies" in broken.stderr
    answers["GET /readyz"] = (200, {"ready": True})
    answers["GET /storez"] = (503, "the S3 server does not implement If-None-Match")
    broken = check("readyz", *urls)
    assert broken.returncode == 1
    assert f'{urls[1]}: status 503: "the S3 server does not implement If-None-Match"' in broken.stderr
    answers["GET /storez"] = (200, "ok")
    done = check("readyz", *urls)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_address_that_nobody_answers_is_named() -> None:
    broken = check("readyz", "http://127.0.0.1:1/readyz")
    assert broken.returncode == 1
    assert "http://127.0.0.1:1/readyz: " in broken.stderr
    assert "NetworkPolicies" in broken.stderr


def test_dns() -> None:
    assert check("dns", "localhost").returncode == 0
    broken = check("dns", "localhost", "rlrun-server.nowhere.invalid")
    assert broken.returncode == 1
    assert "wrong  dns: rlrun-server.nowhere.invalid: " in broken.stderr
    assert "do: check the cluster's DNS and NetworkPolicies" in broken.stderr


def test_s3(s3_server: S3Server, store: Store) -> None:
    bucket = s3_server.bucket
    variables = {**s3_server.environment, "RLRUN_S3_BUCKET": bucket, "RLRUN_S3_PREFIX": "prod/"}
    done = check("s3", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ok     s3: s3://{bucket}/prod/.helm-test/" in done.stdout
    assert store.list_files(S3Uri(bucket, "prod/.helm-test")) == []
    broken = check("s3", **{**variables, "RLRUN_S3_BUCKET": "no-such-bucket"})
    assert broken.returncode == 1
    assert "s3://no-such-bucket/prod/.helm-test/" in broken.stderr
    assert "do: correct `s3` in the chart's values, or the permissions of its credentials" in broken.stderr


def test_s3_in_another_region_fails_as_runs_would() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            is_there = "/eu-west-1/s3/" in self.headers["Authorization"]
            body = b"" if is_there else b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>"
            self.send_response(200 if is_there else 400)
            self.send_header("x-amz-bucket-region", "eu-west-1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        Thread(target=httpd.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{httpd.server_port}"
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
        broken = check("s3", **keys, AWS_ENDPOINT_URL_S3=endpoint, RLRUN_S3_BUCKET="bucket")
        httpd.shutdown()
    assert broken.returncode == 1
    assert "region of the bucket: eu-west-1" in broken.stderr
    assert "set s3.region in the chart" in broken.stderr


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"phase": "Completed"}, ""),
        ({"phase": "Failed", "reason": "ModelNotFound", "message": "None."}, "Failed ModelNotFound None."),
        ({"phase": "Stopped"}, "did not complete: Stopped"),
        ({"phase": "Pending", "message": "no GPU"}, "(tests.run.timeoutSeconds): Pending no GPU"),
        ({}, "no status"),
    ],
)  # fmt: skip
def test_run(server: str, answers: dict[str, tuple[int, Any]], tmp_path: Path, status: Object, said: str) -> None:
    made = {**RUN, "metadata": {"name": "test-1", "namespace": "team"}}
    answers[f"POST {RUNS}"] = (201, made)
    answers[f"GET {RUNS}/test-1"] = (200, {**made, "status": status})
    answers[f"DELETE {RUNS}/test-1"] = (200, {})
    done = check("run", RUN=json.dumps(RUN), KUBECONFIG=kubeconfig(tmp_path, server))
    assert done.returncode == (1 if said else 0), done.stderr
    assert said in done.stderr
    assert answers["got DELETE"][1] == f"{RUNS}/test-1", "nothing is left in the cluster"


def test_a_refused_run_says_why(server: str, answers: dict[str, tuple[int, Any]], tmp_path: Path) -> None:
    answers[f"POST {RUNS}"] = (422, {"message": "spec.env: Required value"})
    done = check("run", RUN=json.dumps(RUN), KUBECONFIG=kubeconfig(tmp_path, server))
    assert done.returncode == 1
    assert "spec.env: Required value" in done.stderr
    assert "or correct `tests.run` in the chart's values" in done.stderr


def kubeconfig(folder: Path, server: str) -> str:
    file = folder / "kubeconfig"
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    file.write_text(yaml.safe_dump(document))
    return str(file)


def test_the_pods_run_the_checks_with_what_they_need(render: Render) -> None:
    run = {"spec": {"model": "a/b", "env": [{"id": "a/c"}]}, "timeoutSeconds": 300, "namespace": "team"}
    rendered = render({"tests": {"run": run}})
    pods = {name.removeprefix("rlrun-test-"): pod for name, pod in pod_templates(rendered.of("Pod")).items()}
    assert set(pods) == {"readyz", "dns", "s3", "run"}
    for name, pod in pods.items():
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        (container,) = pod["spec"]["containers"]
        variables = {v["name"]: v.get("value") for v in container["env"]}
        assert container["command"] == ["python", "-m", "rlrun.installation.checks", name]
        assert pod["spec"]["activeDeadlineSeconds"] > float(variables["CHECK_SECONDS"])
        assert ("AWS_ACCESS_KEY_ID" in variables) is (name == "s3")
        assert ("serviceAccountName" in pod["spec"]) is (name == "run"), "others have no token"
    port = rendered.one("Service", "rlrun-server-metrics")["spec"]["ports"][0]["port"]
    assert pods["readyz"]["spec"]["containers"][0]["args"] == [
        f"http://rlrun-metrics.rlrun-system.svc:{port}/readyz",
        f"http://rlrun-server-metrics.rlrun-system.svc:{port}/storez",
    ]
    assert pods["dns"]["spec"]["containers"][0]["args"][1] == "rlrun-server.rlrun-system.svc"
    variables = {v["name"]: v.get("value") for v in pods["run"]["spec"]["containers"][0]["env"]}
    assert json.loads(variables["RUN"])["spec"] == run["spec"]
    assert variables["CHECK_SECONDS"] == "300"


@pytest.mark.parametrize(
    ("namespaces", "own", "used"), [([], "team", "team"), (["one", "two"], "", "one"), (["one"], "three", "three")]
)
def test_the_run_is_in_a_namespace_that_the_operator_serves(
    render: Render, namespaces: list[str], own: str, used: str
) -> None:
    run = {"spec": {"model": "a/b"}, "namespace": own}
    rendered = render({"operator": {"watchNamespaces": namespaces}, "tests": {"run": run}})
    (pod,) = [p for name, p in pod_templates(rendered.of("Pod")).items() if name.endswith("-run")]
    (text,) = [v["value"] for v in pod["spec"]["containers"][0]["env"] if v["name"] == "RUN"]
    assert json.loads(text)["metadata"]["namespace"] == used
    role = rendered.one("Role", "rlrun-test")
    assert role["metadata"]["namespace"] == used
    assert role["rules"] == [
        {"apiGroups": ["rlrun.dev"], "resources": ["rlruns"], "verbs": ["create", "get", "delete"]}
    ]
    assert rendered.one("RoleBinding", "rlrun-test")["subjects"][0]["namespace"] == "rlrun-system"


def test_a_run_without_the_namespace_of_a_tenant_is_refused(template: Helm) -> None:
    done = template({"tests": {"run": {"spec": {"model": "a/b"}}}})
    assert done.returncode != 0
    assert "tests.run.namespace is required" in done.stderr


def test_a_workload_identity_is_that_of_the_operator(render: Render) -> None:
    rendered = render({"s3": {"credentials": {"existingSecret": "", "workloadIdentity": True}}})
    (pod,) = [p for name, p in pod_templates(rendered.of("Pod")).items() if name.endswith("-s3")]
    assert pod["spec"]["serviceAccountName"] == "rlrun"
