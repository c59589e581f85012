"""Unmodified programs of the Tinker SDK train on a shared pool: the cookbook's own tests, the guide, and our loops.

The trainer computes with torch, because these tests are about what it computes. The engine is a stub, except in the
tests of samples.
"""

import csv
import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rlrun.constants import RUN_LABEL, SERVING_LABEL
from rlrun.protocol.client_run import ModelId, SavedStateUri
from rlrun.storage.layout import S3Uri

from demo.install import MODEL_URI, SYSTEM_NAMESPACE
from demo.kubectl import Object, wait_for
from tests.e2e.conftest import ENGINES, STUBS, Platform
from tests.e2e.server_clients import api_key
from tests.support.pod_processes import processes_of
from tests.support.source_tree import ROOT
from tests.support.tinker_client import HOME, NEWEST_RECIPES, RECIPES, TinkerClient, script, tinker_client
from tests.support.tinker_world import (
    MODEL,
    PROBLEMS,
    RL_MODEL,
    RL_MODEL_URI,
    TRAIN_ROWS,
    add_tokenizer,
    make_hub_cache,
    upload_addition_chat_model,
)

PORT = 8080
KILLED_AFTER = 20
"""Updates of the loop after which the trainer is killed; it has saved its last state long before."""
GUIDE = ROOT / "docs" / "guides" / "tinker.md"
SDK_CHECK = script(ROOT / "tests" / "support" / "tinker_sdk_check.py")
ADDITION_CHAT_MODEL = script(ROOT / "tests" / "support" / "addition_chat_model.py")
SAMPLING_CHECK = script(ROOT / "tests" / "support" / "tinker_sampling_check.py")
LOOP = script(ROOT / "tests" / "support" / "tinker_loop.py")
COMPARISON = """
import runpy, sys
from pathlib import Path
import httpx
from torch.autograd import forward_ad
document = Path(forward_ad.__file__).read_text()
httpx.get = lambda url: httpx.Response(200, text=document, request=httpx.Request("GET", url))
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Program that runs another one, which downloads a file of torch: it gets the file of the installed version."""
SECONDS = 180.0
LARGEST_MISMATCH = 1e-3
"""Difference between log-probabilities of the engine and the trainer, both in float32."""
TOLERANCE = 1e-4
"""Difference between log-probabilities of trainer and stock peft."""


@dataclass(frozen=True)
class Tenant:
    """A namespace, and a user of it whose programs have an API key."""

    namespace: str
    client: TinkerClient

    def loop(self, name: str, argument: str) -> dict[str, Any]:
        """What a loop of `tinker_loop` prints in its last line."""
        found: dict[str, Any] = json.loads(self.client.run("python", LOOP, name, argument).splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def url(platform: Platform) -> str:
    """URL of rlrun-tinker's Service, which this machine reaches as the node of the cluster. The connections of
    `kubectl port-forward` hang after clients have given up many requests.
    """
    service = platform.kubectl.get("service", "rlrun-tinker", SYSTEM_NAMESPACE) or {}
    return f"http://{service['spec']['clusterIP']}:{PORT}"


@pytest.fixture(scope="module")
def shared_model(platform: Platform) -> Iterator[str]:
    """RLModel under the official name that recipes train by default."""
    with pooled_model(platform, "tinker", MODEL, seqLen=1024):
        yield MODEL


@contextmanager
def pooled_model(platform: Platform, name: str, model_id: str, engines: str = STUBS, **spec: Any) -> Iterator[None]:
    entry = platform.model_object(name, model_id, ENGINES)
    entry["spec"] |= spec
    entry["spec"]["inference"] = platform.model_object(name, model_id, engines)["spec"]["inference"]
    entry["spec"]["lora"] = {"rank": 32}
    entry["spec"]["sharing"] = {"mode": "Namespace", "maxRuns": 16, "idleSeconds": 5, "recoverySeconds": 1}
    platform.kubectl.apply(entry)
    yield
    with suppress(RuntimeError):
        platform.kubectl("delete", "rlmodel", name, "--wait=false")


@pytest.fixture(scope="module")
def tenant(
    platform: Platform,
    url: str,
    shared_model: str,
    module_namespace: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Tenant:
    return new_tenant(platform, url, module_namespace("tinker"), tmp_path_factory.mktemp("tinker"))


def new_tenant(platform: Platform, url: str, namespace: str, folder: Path) -> Tenant:
    folder.parent.chmod(0o755)  # pytest's folders are closed to the image's user
    client = tinker_client(url, api_key(platform.kubectl, namespace), folder)
    make_hub_cache(folder / "huggingface", platform.s3.store())
    return Tenant(namespace, client)


@pytest.fixture
def released(platform: Platform, tenant: Tenant) -> Iterator[None]:
    """Stops the runs of the test: their slots would be free after 15 minutes of silence only."""

    def names() -> set[str]:
        return {run["metadata"]["name"] for run in platform.kubectl.list("rlruns", tenant.namespace)}

    before = names()
    yield
    patch = json.dumps({"spec": {"stop": True}})
    for name in names() - before:
        platform.kubectl("patch", "rlrun", name, "-n", tenant.namespace, "--type=merge", "-p", patch)


@pytest.fixture(scope="module")
def trained(tenant: Tenant) -> dict[str, Any]:
    """What the loop `continued` found."""
    return tenant.loop("continued", MODEL)


def ready_artifact(platform: Platform, kind: str, path: str) -> Object:
    """Wait until the RLCheckpoint or RLAdapter that a run has saved alone is Ready."""
    model = SavedStateUri.parse(path).model

    def look() -> Object | None:
        found = platform.kubectl.list(kind, model.namespace, f"{RUN_LABEL}={model.run}")
        return next((item for item in found if item.get("status", {}).get("phase") == "Ready"), None)

    return wait_for(f"{kind} of {path}", look, SECONDS)


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("version", [RECIPES, NEWEST_RECIPES])
def test_the_own_tests_of_the_recipes_pass(tenant: Tenant, version: str) -> None:
    printed = run_recipes(replace(tenant.client, recipes=version), "chat_sl", "rolling_checkpoints")
    assert re.search(r"\b4 passed\b", printed), printed[-4000:]


@pytest.mark.usefixtures("released")
def test_the_basic_recipes_run_with_all_their_defaults(tenant: Tenant) -> None:
    supervised = run_recipe(tenant.client, "sl_basic")
    assert len(supervised) == TRAIN_ROWS // 128
    assert supervised[-1]["train_mean_nll"] < supervised[0]["train_mean_nll"]
    (step,) = run_recipe(tenant.client, "rl_basic")
    assert step["env/all/total_episodes"] == 16 * len(PROBLEMS)


@pytest.fixture(scope="module")
def adding_model(platform: Platform, tenant: Tenant) -> Iterator[str]:
    """RLModel on vLLM that adds numbers, under the official name that the tests of the recipe for RL train."""
    client, store = tenant.client, platform.s3.store()
    client.run("python", ADDITION_CHAT_MODEL, f"{HOME}/addition-chat")
    upload_addition_chat_model(client.folder / "addition-chat", store)
    add_tokenizer(client.folder / "huggingface" / "hub", RL_MODEL, store, RL_MODEL_URI)
    with pooled_model(platform, "tinker-rl", RL_MODEL, ENGINES, source=str(RL_MODEL_URI), seqLen=8192):
        yield RL_MODEL


@pytest.mark.extended
@pytest.mark.usefixtures("released")
def test_the_own_tests_of_the_recipe_for_rl_pass_and_engine_and_trainer_agree(
    tenant: Tenant, adding_model: str
) -> None:
    printed = run_recipes(tenant.client, "math_rl")
    assert re.search(r"\b3 passed\b", printed), printed[-4000:]
    found = tenant.loop("sampled", adding_model)
    assert found["sampled"] == pytest.approx(found["trained"], abs=LARGEST_MISMATCH)
    assert found["scored"] == pytest.approx(found["sampled"][: len(found["scored"])], abs=LARGEST_MISMATCH)
    print("seconds to the first sample of a model:", tenant.loop("first_samples", adding_model)["seconds"])


@pytest.mark.extended
@pytest.mark.usefixtures("released")
def test_the_recipe_for_rl_learns_arithmetic(tenant: Tenant, adding_model: str) -> None:
    sizes = ("groups_per_batch=16", "group_size=8", "max_steps=30")
    options = ("env=arithmetic", f"model_name={adding_model}", "learning_rate=2e-3", *sizes)
    steps = run_recipe(tenant.client, "math_rl.train", *options)
    rewards = [step["env/all/reward/total"] for step in steps]
    assert len(rewards) == 30
    assert fmean(rewards[-10:]) > fmean(rewards[:10]) + 0.08, rewards
    print("rewards:", rewards)


@pytest.mark.extended
@pytest.mark.usefixtures("released")
def test_the_recipes_own_comparison_of_log_probabilities_passes(tenant: Tenant, adding_model: str) -> None:
    program = "tests/compare_sampling_training_logprobs.py"
    tenant.client.run("python", "-c", COMPARISON, program, f"model_names={adding_model}")
    with (tenant.client.folder / "tinker-runs" / "sampling_training_logprobs.csv").open() as file:
        (row,) = csv.DictReader(file)
    print(row)
    assert not row["error"]
    assert float(row["mse[sample, train]"]) < LARGEST_MISMATCH**2


def run_recipe(client: TinkerClient, name: str, *options: str) -> list[dict[str, Any]]:
    """Run a recipe, and return the metrics of its steps."""
    folder = f"runs/{name}"
    client.run("python", "-m", f"tinker_cookbook.recipes.{name}", f"log_path={HOME}/{folder}", *options)
    return [json.loads(line) for line in (client.folder / folder / "metrics.jsonl").read_text().splitlines()]


def run_recipes(client: TinkerClient, *recipes: str) -> str:
    """Run the recipes' own tests, which this repository does not have."""
    plugins = ("-p", "no:asyncio", "-p", "no:hypothesispytest")
    return client.run("python", "-m", "pytest", *plugins, *(f"tests/recipes/test_recipe_{name}.py" for name in recipes))


@pytest.mark.usefixtures("released")
def test_a_loop_that_sends_each_call_twice_trains_once(tenant: Tenant) -> None:
    found = json.loads(tenant.client.run("python", SDK_CHECK, MODEL).splitlines()[-1])
    assert len(found["metrics"]) == 3


@pytest.mark.usefixtures("released")
def test_policies_named_weights_and_the_base_model_are_sampled_from(tenant: Tenant) -> None:
    printed = tenant.client.run("python", SAMPLING_CHECK, MODEL, "100", "3", "8", "15", "22")
    found = json.loads(printed.splitlines()[-1])
    policy, named, base = found["scores"]
    assert policy == named, "both are the weights of one moment"
    assert policy != base, "the stub samples differently from each model"


@pytest.mark.usefixtures("released")
def test_the_program_of_the_guide_runs(tenant: Tenant) -> None:
    program = "".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    named = re.sub(r'base_model="[^"]+"', f'base_model="{MODEL}"', program)
    assert named != program
    printed = tenant.client.run("python", "-c", named)
    losses = [float(loss) for loss in re.findall(r"^(?:\d+ )?(-?\d+\.\d+(?:e-?\d+)?)$", printed, re.MULTILINE)]
    assert len(losses) == 11, printed
    assert losses[-1] < losses[0]


def test_with_the_optimizer_training_continues_to_the_bit_and_without_it_does_not(trained: dict[str, Any]) -> None:
    assert trained["before"] != trained["saved"]
    assert trained["loaded_with_optimizer"] == trained["saved"]
    assert trained["loaded_without_optimizer"] == trained["saved"]
    assert trained["with_optimizer"] == trained["uninterrupted"]
    assert trained["without_optimizer"] != trained["uninterrupted"]


def test_models_are_runs_without_pods_in_the_namespace_of_the_key(
    platform: Platform, tenant: Tenant, trained: dict[str, Any]
) -> None:
    model = ModelId.parse(trained["model"])
    assert model.namespace == tenant.namespace
    run = platform.kubectl.get("rlrun", model.run, tenant.namespace) or {}
    assert (run["spec"]["driver"], run["spec"]["model"]) == ("Client", MODEL)
    assert not platform.kubectl.list("pods", tenant.namespace, f"{RUN_LABEL}={model.run}")


def test_stock_peft_loads_the_adapter(platform: Platform, tenant: Tenant, trained: dict[str, Any]) -> None:
    found = ready_artifact(platform, "rladapters", trained["weights"])
    store, folder = platform.s3.store(), tenant.client.folder / "peft"
    store.download(MODEL_URI, folder / "base")
    store.download(S3Uri.parse(found["spec"]["uri"]), folder / "adapter")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    computed = tenant.loop("peft", f"{HOME}/peft")["logprobs"]
    for row, expected in zip(computed, trained["saved"], strict=True):
        assert row == pytest.approx(expected, abs=TOLERANCE)


def test_another_tenants_key_does_not_find_the_model_or_its_states(
    platform: Platform, url: str, tenant: Tenant, trained: dict[str, Any], module_namespace: Callable[[str], str]
) -> None:
    key = api_key(platform.kubectl, module_namespace("stranger"))
    model, state = trained["model"], trained["state"]
    adam = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0, "grad_clip_norm": 0}
    step = {"model_id": model, "seq_id": 99, "adam_params": adam, "type": "optim_step"}
    save = {"model_id": model, "seq_id": 99, "path": "stolen", "type": "save_weights"}
    requests = {
        "get_info": ("POST", "get_info", {"model_id": model, "type": "get_info"}),
        "optim_step": ("POST", "optim_step", step),
        "save": ("POST", "save_weights", save),
        "weights_info": ("POST", "weights_info", {"tinker_path": state}),
        "training run": ("GET", f"training_runs/{model}", None),
        "delete": ("DELETE", f"training_runs/{model}/checkpoints/weights/two", None),
    }
    answers = {name: send(url, key, *request) for name, request in requests.items()}
    assert set(answers.values()) <= {403, 404}, answers
    assert send(url, tenant.client.key, *requests["get_info"]) == 200
    assert ready_artifact(platform, "rlcheckpoints", state)


def send(url: str, key: str, method: str, path: str, body: object) -> int:
    """The status of a response to the SDK's wire."""
    headers = {"X-API-Key": f"tml-{key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/api/v1/{path}", data, headers, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_state_that_the_program_deletes_is_gone(platform: Platform, tenant: Tenant, trained: dict[str, Any]) -> None:
    name = ready_artifact(platform, "rlcheckpoints", trained["state"])["metadata"]["name"]
    tenant.loop("deleted", trained["state"])
    info = ("POST", "weights_info", {"tinker_path": trained["state"]})
    assert send(tenant.client.url, tenant.client.key, *info) == 404
    # Active runs would continue after a restart from this checkpoint: its own run, and those that have loaded it.
    stop = ("--type=merge", "-p", json.dumps({"spec": {"stop": True}}))
    for run in platform.kubectl.list("rlruns", tenant.namespace):
        platform.kubectl("patch", "rlrun", run["metadata"]["name"], "-n", tenant.namespace, *stop)
    gone = lambda: platform.kubectl.get("rlcheckpoint", name, tenant.namespace) is None  # noqa: E731
    wait_for("the end of the RLCheckpoint", gone, SECONDS)


@pytest.mark.usefixtures("released")
def test_after_a_kill_of_the_trainer_the_program_learns_from_which_state_to_go_on(
    platform: Platform, tenant: Tenant
) -> None:
    process = tenant.client.start("python", LOOP, "killed", MODEL)
    assert process.stdout is not None
    while (line := process.stdout.readline()) and not line.startswith(f"update {KILLED_AFTER}"):
        continue
    pods = platform.kubectl.list("pods", tenant.namespace, f"{SERVING_LABEL},rlrun.dev/role=trainer")
    # A deleted pod gets SIGTERM first, also without a grace period, and the trainer then loses nothing.
    killed = processes_of(pods, "rlrun_trainer")
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert killed
    found = json.loads(tenant.client.end(process).splitlines()[-1])
    assert found["category"] == "server", found
    assert any(state in found["message"] for state in found["states"]), found["message"]
