"""What runs leave: checkpoints by the retention rule, artifacts by their policy, adapters that can be deployed.

One run makes the artifacts that all tests look at; it is deleted before its adapter is deployed.
"""

import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from statistics import fmean
from types import ModuleType
from typing import Any

import openai
import pytest
from rlrun.storage.layout import RunLayout

from demo.install import BUCKET, EXAMPLES, rlrun
from demo.kubectl import Object, wait_for
from demo.watch import follow
from tests.e2e.conftest import ENGINES, SECONDS, STUBS, Platform
from tests.e2e.server_clients import api_key, server_on_loopback

IMAGE = "localhost/rlrun-orchestrator:local"
PROMPTS = 24
STEPS = 12
KEPT = 2
"""Checkpoints and adapters; one of each is made in every step."""
MAKER: dict[str, Any] = {
    "maxSteps": STEPS,
    "artifactPolicy": "Retain",
    "checkpoints": {"interval": 1, "keepCloud": KEPT},
    "adapters": {"interval": 1, "keepLast": KEPT},
}

CLIENT = """
import json, os, sys, time, urllib.error, urllib.request
url, models, texts, closed = json.loads(sys.argv[1])
KEY = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
def ask(path, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **KEY})
    return json.load(urllib.request.urlopen(request, timeout=60))
def answer(model, text):
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0}
    return ask("/chat/completions", body)["choices"][0]["message"]["content"] or ""
def status(method, address, headers):
    request = urllib.request.Request(address, b"{}" if method != "GET" else None, headers, method=method)
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
for attempt in range(20):
    # A node routes to a pod a moment after it is ready, so clients repeat refused connections.
    try:
        served = [m["id"] for m in ask("/models")["data"]]
        break
    except urllib.error.URLError as error:
        if attempt == 19 or not isinstance(error.reason, ConnectionRefusedError):
            raise
        time.sleep(0.5)
answers = {m: [answer(m, t) for t in texts] for m in models}
refused = {address: status(method, address, KEY) for method, address in closed}
keyless = [status("GET", url + "/models", {}), status("POST", url + "/completions", {})]
print(json.dumps({"served": served, "answers": answers, "refused": refused, "keyless": keyless}))
"""


@pytest.fixture(scope="module")
def task() -> ModuleType:
    """The example's own texts and its own measure."""
    path = EXAMPLES / "reverse_text_model" / "reverse_text_data.py"
    spec = importlib.util.spec_from_file_location("reverse_text_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(
    platform: Platform,
    namespace: str,
    name: str,
    deployed: Object,
    models: list[str],
    texts: list[str],
    closed: Sequence[tuple[str, str]] = (),
) -> Any:
    """What the pool says to a pod of the same namespace, which has the API key as any client there would have it.

    `deployed`: status of a deployed adapter. `closed`: methods and URLs that users must not use.
    """
    container = {
        "name": "client",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", CLIENT, json.dumps([deployed["deploymentUrl"], models, texts, closed])],
        "envFrom": [{"secretRef": {"name": deployed["deploymentSecret"]}}],
    }
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    metadata = {"name": name, "namespace": namespace}
    platform.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def ended() -> str | None:
        phase = str((platform.kubectl.get("pod", name, namespace) or {}).get("status", {}).get("phase"))
        return phase if phase in ("Succeeded", "Failed") else None

    phase = wait_for(f"the end of pod {name}", ended, SECONDS)
    text = platform.kubectl("logs", name, "-n", namespace)
    assert phase == "Succeeded", text
    return json.loads(text.splitlines()[-1])


def closed_to_users(platform: Platform, namespace: str, url: str) -> list[tuple[str, str]]:
    """Methods and URLs of a pool that its users must not use: no policy of the network keeps them away here."""
    engine = url.removesuffix("/v1")
    paths = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/tokenize", "/invocations", "/collective_rpc")
    (pod,) = platform.kubectl.list("pods", namespace, "rlrun.dev/serving")
    return [*(("POST", engine + path) for path in paths), ("PUT", f"http://{pod['status']['podIP']}:8001/adapters")]


def deploy(platform: Platform, name: str, namespace: str, deployed: bool) -> None:
    """`kubectl patch`, as a user does it."""
    patch = json.dumps({"spec": {"deployed": deployed}})
    platform.kubectl("patch", "rladapter", name, "-n", namespace, "--type", "merge", "-p", patch)


def in_state(platform: Platform, name: str, namespace: str, state: str, seconds: float) -> Object:
    """The adapter's status once its deployment is in that state."""
    seen: list[Object] = [{}]

    def look() -> Object | None:
        seen[0] = (platform.kubectl.get("rladapter", name, namespace) or {}).get("status") or {}
        return seen[0] if seen[0].get("deploymentState") == state else None

    try:
        return wait_for(f"{state} of {name}", look, seconds)
    except RuntimeError as error:
        pods = platform.kubectl("get", "pods", "-n", namespace, "-o", "wide")
        pytest.fail(f"{error}; it is {seen[0].get('deploymentState')}: {seen[0].get('deploymentMessage')}\n{pods}")


def failure(platform: Platform, name: str, namespace: str) -> str:
    """Why the adapter is not deployed, or an empty text while nothing has failed."""
    status = (platform.kubectl.get("rladapter", name, namespace) or {}).get("status") or {}
    return str(status.get("deploymentMessage", "")) if status.get("deploymentState") == "DeployFailed" else ""


def pool(platform: Platform, namespace: str) -> list[Object]:
    """Everything that the pool has."""
    kinds = "deployments,services,configmaps,secrets,serviceaccounts,networkpolicies,pods"
    return platform.kubectl.list(kinds, namespace, "rlrun.dev/serving")


@pytest.fixture(scope="module")
def finished(platform: Platform, model: str, module_namespace: Callable[[str], str]) -> Object:
    """The run of MAKER as it was in the end."""
    namespace = module_namespace("artifacts")
    platform.kubectl.apply(platform.run_object("maker", namespace, model=model, **MAKER))
    return follow(platform.kubectl, "maker", namespace, SECONDS)


@pytest.fixture(scope="module")
def deleted(platform: Platform, finished: Object) -> Object:
    """The same run after `kubectl delete`."""
    namespace = finished["metadata"]["namespace"]
    platform.kubectl("delete", "rlrun", "--all", "-n", namespace, "--wait=true", "--timeout=400s", timeout=420)
    return finished


def layout_of(run: Object) -> RunLayout:
    return RunLayout.of(BUCKET, "", run["metadata"]["namespace"], run["metadata"]["uid"])


def steps_ready(platform: Platform, kind: str, namespace: str) -> list[int]:
    """Steps of what the first run has left, if all of it is Ready."""
    objects = [o for o in platform.kubectl.list(kind, namespace) if o["spec"]["runName"] == "maker"]
    return sorted(o["spec"]["step"] for o in objects if o.get("status", {}).get("phase") == "Ready")


def uploaded_steps(platform: Platform, run: Object, kind: str) -> list[int]:
    """Steps whose upload the trainer's log calls complete. A checkpoint that waits is replaced by a newer one."""
    store, logs = platform.s3.store(), layout_of(run).logs

    def copies() -> list[str]:
        return [name for name, _ in store.list_files(logs) if name.endswith("/trainer.log")]

    text = "".join(store.get_bytes(logs / name).decode() for name in wait_for("the trainer's log", copies, SECONDS))
    return sorted({int(step) for step in re.findall(rf"{kind} of step (\d+) is complete", text)})


@pytest.mark.proves("checkpoints.interval", "checkpoints.keepCloud")
def test_checkpoints_are_kept_by_the_retention_rule(platform: Platform, finished: Object) -> None:
    store = platform.s3.store()
    for kind, folder in (("Checkpoint", "checkpoints"), ("Adapter", "adapters")):
        uploaded = uploaded_steps(platform, finished, kind)
        assert uploaded[-1:] == [STEPS], kind
        assert steps_ready(platform, f"rl{folder}", finished["metadata"]["namespace"]) == uploaded[-KEPT:], kind
        # An artifact that is being deleted keeps its object until its files are gone.
        kept = layout_of(finished).root / folder
        wait_for(f"{KEPT} {folder} in S3", lambda at=kept: len(store.list_folders(at)) <= KEPT, SECONDS)
        assert len(store.list_folders(kept)) == KEPT


@pytest.mark.proves("artifactPolicy")
def test_deleting_a_run_removes_its_children_and_keeps_its_artifacts(platform: Platform, deleted: Object) -> None:
    namespace, store = deleted["metadata"]["namespace"], platform.s3.store()

    def children() -> list[str]:
        kinds = "pods,jobs,deployments,replicasets,services,configmaps,networkpolicies,secrets"
        return [o["metadata"]["name"] for o in platform.kubectl.list(kinds, namespace, "rlrun.dev/run")]

    wait_for("the children's end", lambda: not children(), SECONDS)
    assert store.list_folders(layout_of(deleted).root / "checkpoints")


def check_server(
    platform: Platform, namespace: str, other: str, name: str, models: list[str], expected: dict[str, str]
) -> None:
    """Ask a deployed adapter over rlrun-server as users outside of the cluster do it.

    `other`: a namespace without it. `models`: base model and adapter. `expected`: what the pool itself answers to some
    texts.
    """
    base, model = models
    kubectl = platform.kubectl
    keys = {place: api_key(kubectl, place) for place in (namespace, other)}
    texts = list(expected)
    with server_on_loopback(kubectl) as url:
        clients = {
            place: openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=60, max_retries=3)
            for place, key in keys.items()
        }
        mine, theirs = clients[namespace], clients[other]

        def answer(asked: str, text: str) -> str:
            message: Any = {"role": "user", "content": text}
            found = mine.chat.completions.create(model=asked, messages=[message], max_tokens=24, temperature=0)
            assert found.usage is not None
            assert found.usage.completion_tokens > 0
            return found.choices[0].message.content or ""

        def pieces(text: str) -> list[str]:
            message: Any = {"role": "user", "content": text}
            stream = mine.chat.completions.create(
                model=model, messages=[message], max_tokens=24, temperature=0, stream=True
            )
            return [chunk.choices[0].delta.content or "" for chunk in stream]

        assert {m.id for m in mine.models.list()} >= {base, model}
        assert {text: answer(model, text) for text in texts} == expected
        assert answer(f"{namespace}/{name}", texts[0]) == expected[texts[0]]
        streamed = pieces(texts[0])
        assert "".join(streamed) == expected[texts[0]]
        assert len([piece for piece in streamed if piece]) > 1, "it comes in pieces"

        # Of other namespaces nothing is known, and paths that load adapters are no paths of the server.
        assert [m.id for m in theirs.models.list()] == []
        for asked in (model, f"{namespace}/{name}", f"{namespace}/{base}"):
            with pytest.raises(openai.NotFoundError, match="does not exist, or you may not use it"):
                theirs.completions.create(model=asked, prompt="a")
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key=keys[namespace][:-1] + "_", max_retries=0).models.list()
        with pytest.raises(openai.NotFoundError):
            mine.post("/unload_lora_adapter", body={"lora_name": model}, cast_to=object)

    printed = rlrun(kubectl, "chat", name, texts[0], "-n", namespace, "--max-tokens", "24", "--temperature", "0")
    assert printed.strip() == expected[texts[0]].strip()


def test_a_deployed_adapter_answers_until_it_is_undeployed(
    platform: Platform, model: str, deleted: Object, task: ModuleType, fresh_namespace: Callable[[str], str]
) -> None:
    namespace = deleted["metadata"]["namespace"]
    kubectl = platform.kubectl
    adapters = [o for o in kubectl.list("rladapters", namespace) if o["spec"]["runName"] == "maker"]
    adapter = max(adapters, key=lambda o: o["spec"]["step"])
    name = adapter["metadata"]["name"]
    assert adapter["status"]["deploymentState"] == "NotDeployed"

    deploy(platform, name, namespace, True)
    told = in_state(platform, name, namespace, "Deployed", SECONDS)
    assert told["deploymentModel"] == f"{model}:{name}"
    assert told["phase"] == "Ready"

    texts = task.dataset(PROMPTS, 7, "eval", 5, 10)
    models = [model, told["deploymentModel"]]
    closed = closed_to_users(platform, namespace, told["deploymentUrl"])
    first = ask(platform, namespace, "client-1", told, models, texts, closed)
    assert sorted(first["served"]) == sorted(models)
    assert first["refused"] == {url: 401 for _, url in closed}, "the users' key opens no other paths"
    assert first["keyless"] == [401, 401]
    base, adapted = (first["answers"][served] for served in models)
    assert adapted != base, "the adapter answers as its base model does"
    if model == ENGINES:
        scores = [
            fmean(task.similarity(answer, text) for answer, text in zip(answers, texts, strict=True))
            for answers in (base, adapted)
        ]
        print(f"similarity: {scores}")
        assert scores[1] > scores[0] + 0.1, "the adapter has not learned"

    some = dict(zip(texts[:4], adapted, strict=False))
    check_server(platform, namespace, fresh_namespace("strangers"), name, models, some)

    # A replica that is lost comes back with its adapters before it gets requests.
    (pod,) = kubectl.list("pods", namespace, "rlrun.dev/serving")
    kubectl("delete", "pod", pod["metadata"]["name"], "-n", namespace, "--grace-period=0", "--force")
    in_state(platform, name, namespace, "Deploying", SECONDS)
    in_state(platform, name, namespace, "Deployed", SECONDS)
    again = ask(platform, namespace, "client-2", told, models, texts[:4])
    assert sorted(again["served"]) == sorted(models)
    assert again["answers"][models[1]] == adapted[:4], "greedy answers of the same weights"

    deploy(platform, name, namespace, False)
    in_state(platform, name, namespace, "NotDeployed", SECONDS)
    wait_for("the pool's end", lambda: not pool(platform, namespace), SECONDS)
    assert kubectl.get("rladapter", name, namespace), "what is not served is kept all the same"


def test_an_adapter_that_cannot_be_served_shows_its_reason(
    platform: Platform, fresh_namespace: Callable[[str], str]
) -> None:
    namespace = fresh_namespace("unserved")
    own = f"s3://rlrun/{namespace}/gone/adapters/step-000001"
    spec = {"runName": "gone", "runUid": "gone", "step": 1}
    adapter = {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLAdapter"}
    foreign = "s3://rlrun/somebody-else/gone/adapters/step-000001"
    for name, model, uri in (("unready", STUBS, own), ("orphan", "unknown/model", own), ("foreign", STUBS, foreign)):
        metadata = {"name": name, "namespace": namespace}
        platform.kubectl.apply(
            {**adapter, "metadata": metadata, "spec": {**spec, "model": model, "uri": uri, "deployed": True}}
        )
    status = json.dumps({"status": {"phase": "Ready"}})
    platform.kubectl(
        "patch", "rladapter", "orphan", "-n", namespace, "--subresource=status", "--type", "merge", "-p", status
    )
    # The first message of the second adapter may be from before its status said Ready.
    for name, words in (
        ("unready", "AdapterNotReady: The adapter is Pending"),
        ("orphan", "ModelNotFound: "),
        ("foreign", "ArtifactNotOwned: "),
    ):
        wait_for(f"{words} of {name}", lambda n=name, w=words: failure(platform, n, namespace).startswith(w), SECONDS)
    assert pool(platform, namespace) == []
