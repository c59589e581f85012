"""The commands of the guides, run in their order; what needs pods is left to tests/e2e/test_guides.py."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import yaml
from rlrun.storage.samples.object_file import encode_samples
from rlrun.storage.samples.record import SampleSplit
from rlrun_operator.runtime.server_certificate import make_certificate

from tests.apiserver.docs.conftest import ROOT, World
from tests.support.config_hub import QWEN3_8B, config_file, config_hub
from tests.support.model_configs import MODELS
from tests.support.sample_records import groups

RIGHTS: dict[str, tuple[str, ...]] = {
    "abort_multipart_upload": ("s3:AbortMultipartUpload",),
    "complete_multipart_upload": ("s3:PutObject",),
    "create_multipart_upload": ("s3:PutObject",),
    "delete_object": ("s3:DeleteObject",),
    "delete_objects": ("s3:DeleteObject",),
    "get_object": ("s3:GetObject",),
    "head_object": ("s3:GetObject",),
    "list_multipart_uploads": ("s3:ListBucketMultipartUploads",),
    "list_objects_v2": ("s3:ListBucket",),
    "put_object": ("s3:PutObject",),
    "upload_part": ("s3:PutObject",),
}
"""What each request of boto3's client needs."""


@pytest.mark.slow
def test_continue(follow: Callable[..., int]) -> None:
    assert follow("continue.md") >= 12


@pytest.mark.slow
def test_command_line(follow: Callable[..., int], pip: None) -> None:
    assert follow("command-line.md") == 5


@pytest.mark.slow
def test_training(follow: Callable[..., int], world: World) -> None:
    world.start("first")
    world.trains("first", "20")
    layout, store = world.layout("first"), world.bench.s3.store()
    for split, use in ((SampleSplit.train, ""), (SampleSplit.filtered, "filtered"), (SampleSplit.eval, "eval-exam")):
        environment = "exam" if split is SampleSplit.eval else "reverse-text"
        found = groups(2, step=20, split=split, environment=environment, reward=0.1)
        store.put_bytes(layout.rollouts(20, use), encode_samples(20, split, found).data)
    assert follow("training.md") == 1


@pytest.mark.slow
def test_models(follow: Callable[..., int], world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "b968826d9c46dd6066d109eabc6255188de91218"
    try:
        with config_hub(config_file("Qwen/Qwen3-8B", commit, QWEN3_8B)) as url:
            monkeypatch.setenv("HF_ENDPOINT", url)
            assert follow("models.md") == 3
    finally:
        # Models have no namespace: other tests would see it.
        world.bench.call("DELETE", "/apis/rlrun.dev/v1alpha1/rlmodels/qwen3-8b")


@pytest.mark.slow
def test_math(follow: Callable[..., int], world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = {
        "Qwen3-0.6B": "c1899de289a04d12100db370d81485cdf75e47ca",
        "Qwen3-4B": "1cfa9a7208912126459214e8b04321603b3df60c",
    }
    files: dict[str, bytes | str] = {}
    for model, commit in commits.items():
        files.update(config_file(f"Qwen/{model}", commit, MODELS[model]))
    try:
        with config_hub(files) as url:
            monkeypatch.setenv("HF_ENDPOINT", url)
            assert follow("math.md") == 5
    finally:
        # Models have no namespace: other tests would see them.
        for model in commits:
            world.bench.call("DELETE", f"/apis/rlrun.dev/v1alpha1/rlmodels/{model.lower()}")


@pytest.mark.slow
def test_troubleshooting(follow: Callable[..., int], world: World) -> None:
    spec = yaml.safe_load((ROOT / "examples/reverse-text.yaml").read_text())["spec"]
    run = {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLRun", "metadata": {"name": "first"}}
    namespace = f"/apis/rlrun.dev/v1alpha1/namespaces/{world.bench.namespace}/rlruns"
    world.bench.call("POST", namespace, {**run, "spec": {**spec, "envFrom": [{"secretRef": {"name": "judge"}}]}})
    world.bench.wait("the missing Secret", lambda: world.bench.condition("Validated", "first").get("status") == "False")
    (world.guide_folder / "keys.env").write_text("JUDGE_KEY=x\n")
    assert follow("troubleshooting.md") == 2


@pytest.mark.slow
def test_operate(follow: Callable[..., int], world: World) -> None:
    world.start("reverse-text")
    assert follow("operate.md", lost=world.loses, buries=world.buries, runs=lambda *_: None) >= 10


@pytest.mark.slow
def test_rotate(follow: Callable[..., int], world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start("reverse-text")
    keys = (f"{name}={world.bench.s3.environment[name]}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    (world.guide_folder / "new-key.env").write_text("\n".join(keys))
    for age in ("old-", "new-"):
        made = make_certificate("rlrun-server.rlrun-system.svc", datetime.now(UTC))
        for part, content in made.items():
            name = part if age == "old-" and part != "ca.crt" else f"{age}{part}"
            (world.guide_folder / name).write_bytes(content)
    monkeypatch.setenv("SECRET", "s3-source")
    assert follow("rotate.md") == 7


def test_the_bucket_policy_allows_exactly_what_the_code_asks_for() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```", (ROOT / "docs/guides/operate.md").read_text(), re.M | re.S)
    statements = json.loads(text)["Statement"]
    allowed = {action for statement in statements for action in statement["Action"]}
    code = "\n".join(f.read_text() for f in sorted((ROOT / "core/rlrun/storage").glob("*.py")))
    asked = set(re.findall(r"_?s3\.([a-z]\w+)\(", code)) | set(re.findall(r'get_paginator\("(\w+)"\)', code))
    asked -= {"get_paginator", "close"}
    assert asked >= {"get_object", "list_objects_v2"}, "the code has changed its ways: adapt this test"
    assert asked <= RIGHTS.keys(), f"say which right {asked - RIGHTS.keys()} needs"
    assert {right for call in asked for right in RIGHTS[call]} == allowed
    buckets, objects = statements
    assert all("Bucket" in action for action in buckets["Action"])
    assert objects["Resource"].endswith("/*")
