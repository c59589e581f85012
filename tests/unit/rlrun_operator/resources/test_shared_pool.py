"""What a shared pool has in the cluster."""

import base64
import json
from typing import Any

import pytest
from pydantic import ValidationError
from rlrun.api.model import RLModelSpec, Sharing
from rlrun.constants import RUN_LABEL
from rlrun.kube.objects import Obj
from rlrun.protocol.shared_pool import MAX_RUNS, PooledRun, PoolOrder, TrainedRun, TrainerOrder
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.network import network_policies
from rlrun_operator.resources.serving_pool import PoolIdentity, differs
from rlrun_operator.resources.shared_pool import PoolOrders, pool_named, shared_pool, shared_pool_children

from tests.support.built_children import (
    BASE,
    HUB,
    IDENTITY,
    POOL,
    SETTINGS,
    SOURCES,
    container_of,
    resolved,
    templates,
    variables,
)
from tests.support.built_children import build as build_run

SHARED: Obj = {"mode": "Namespace", "maxRuns": 4, "engines": 2}
RUN = PooledRun(uid="uid-1", token_digest="0" * 64, policies="s3://rlrun/team/uid-1/policy", max_requests=256)
ORDER = PoolOrder(base="a/b", runs=[RUN], grant="signed")
TRAINED = TrainedRun(
    uid="uid-1", token_digest="0" * 64, folder="s3://rlrun/team/uid-1", keep_policies=8, grant="signed"
)
TRAINER_ORDER = TrainerOrder(runs=[TRAINED])
TOKEN = "token-of-the-pool"
SHARED_VARIABLES = ("RLRUN_POOL_ORDER_FILE", "RLRUN_MAX_LORAS", "RLRUN_MAX_SEQUENCES", "RLRUN_MAX_BODY")


def model(**spec: Any) -> RLModelSpec:
    return RLModelSpec.model_validate({"id": "a/b", "source": SOURCES[0], "seqLen": 512, "sharing": SHARED, **spec})


def platform(**settings: Any) -> OperatorSettings:
    return OperatorSettings.model_validate({"s3": BASE, **settings})


def build(settings: OperatorSettings | None = None, order: PoolOrder = ORDER, **spec: Any) -> dict[str, Obj]:
    """The objects of a shared pool by kind, those of its trainer as `TrainerDeployment` and `TrainerService`."""
    full, catalog = settings or platform(), model(**spec)
    pool = shared_pool("team", catalog, full)
    storage = StorageAccess(full, b"k" * 32, "team", pool.name)
    orders = PoolOrders(order, TRAINER_ORDER if catalog.trainer.is_shareable else None)
    made = shared_pool_children(pool, full, catalog, storage, TOKEN, orders)
    prefixes = ["Trainer" if c["metadata"]["name"] == pool.trainer else "" for c in made]
    return {f"{prefix}{c['kind']}": c for prefix, c in zip(prefixes, made, strict=True)}


def container(found: dict[str, Obj], name: str) -> Obj:
    kind = "TrainerDeployment" if name == "trainer" else "Deployment"
    return container_of(found[kind]["spec"]["template"], name)


def test_the_engine_accepts_the_runs_in_the_order_and_not_one_key() -> None:
    found = build(inference={"env": [{"name": "VLLM_API_KEY", "value": "mine"}]})
    env = variables(container(found, "vllm"))
    secret = found["Secret"]["metadata"]["name"]
    assert env["RLRUN_TOKEN"] == {"secretKeyRef": {"name": secret, "key": "RLRUN_TOKEN"}}
    assert env["RLRUN_POOL_ORDER_FILE"] == "/adapters/.pool-order.json"
    assert env["RLRUN_OPEN_PATHS"] == "/health", "metrics name the policies of all runs"
    assert not {"VLLM_API_KEY", "RLRUN_POOL_API_KEY", "RLRUN_POOL_SERVER_KEY"} & env.keys()


def test_a_model_cannot_set_the_variables_of_the_middleware() -> None:
    names = (*SHARED_VARIABLES, "RLRUN_OPEN_PATHS", "RLRUN_TOKEN")
    env = [{"name": name, "value": "forged"} for name in names]
    entries = container(build(inference={"env": env}), "vllm")["env"]
    assert [e["name"] for e in entries if e.get("value") == "forged"] == []
    assert all(sum(e["name"] == name for e in entries) == 1 for name in names)


def test_a_model_cannot_make_the_engine_of_a_run_read_an_order() -> None:
    env = [{"name": name, "value": "forged"} for name in SHARED_VARIABLES]
    engine = container_of(templates(build_run({"inference": {"env": env}}))["reverse-inference"], "vllm")
    assert "forged" not in variables(engine).values()


@pytest.mark.parametrize(("runs", "gpu", "cpu"), [(1, "3", "12"), (8, "24", "96"), (64, "32", "768")])
def test_each_slot_has_three_policies_on_the_gpu_and_twelve_in_memory(runs: int, gpu: str, cpu: str) -> None:
    vllm = container(build(sharing={**SHARED, "maxRuns": runs}), "vllm")
    args = vllm["args"]
    assert [args[args.index(f"--max-{name}") + 1] for name in ("loras", "cpu-loras")] == [gpu, cpu]
    assert variables(vllm)["RLRUN_MAX_LORAS"] == gpu


@pytest.mark.parametrize(
    ("args", "sequences"),
    [
        ([], 256),
        (["--max-num-seqs", "64"], 64),
        (["--max-num-seqs=64", "--enforce-eager"], 64),
        (["--max_num_seqs", "64"], 64),
        (["--max_num_seqs=64"], 64),
        (["--max-num-seq", "64"], 64),
        (["--max-num-seqs", "64", "--max-num-seqs=32"], 32),
        (["--max-num-seqs", "many"], 256),
        (["--max-num-seqs"], 256),
        (["--max-num-batched-tokens", "8192", "--dtype", "--max-num-x"], 256),
    ],
)
def test_the_middleware_knows_how_many_requests_the_engine_batches(args: list[str], sequences: int) -> None:
    vllm = container(build(inference={"extraArgs": args}), "vllm")
    assert variables(vllm)["RLRUN_MAX_SEQUENCES"] == str(sequences)
    given = vllm["args"]
    assert given[given.index("--max-num-seqs") + 1] == str(sequences)
    assert given[len(given) - len(args) :] == args


def test_responses_name_the_cached_tokens_of_their_prompts() -> None:
    assert "--enable-prompt-tokens-details" in container(build(), "vllm")["args"]


def test_each_copy_of_the_model_has_a_batch_of_its_own() -> None:
    vllm = container(build(inference={"gpus": 4, "parallelism": {"data": 4}}), "vllm")
    assert variables(vllm)["RLRUN_MAX_SEQUENCES"] == "1024"
    assert vllm["args"][vllm["args"].index("--max-num-seqs") + 1] == "256"


@pytest.mark.parametrize(("seq_len", "size"), [(512, 1081344), (131072, 9437184), (1048576, 67108864)])
def test_bodies_have_at_most_the_size_that_the_longest_prompt_needs(seq_len: int, size: int) -> None:
    assert variables(container(build(seqLen=seq_len), "vllm"))["RLRUN_MAX_BODY"] == str(size)


def test_the_sidecar_starts_from_the_order_in_the_secret_and_has_no_grant_in_a_variable() -> None:
    found = build()
    sidecar = container(found, "sidecar")
    given, secret = variables(sidecar), found["Secret"]
    assert sidecar["command"] == ["python", "-m", "rlrun_adapter_sidecar.pools"]
    assert given["RLRUN_ADAPTERS_DIR"] == "/adapters"
    assert "RLRUN_STORAGE_GRANT" not in given
    assert {m["name"]: m["mountPath"] for m in sidecar["volumeMounts"]}["order"] == "/etc/rlrun/pool"
    volumes = {v["name"]: v for v in found["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    source = volumes["order"]["secret"]
    assert source["secretName"] == secret["metadata"]["name"]
    # The engine's user code never sees the token through this volume.
    assert source["items"] == [{"key": "pool-order.json", "path": "pool-order.json"}]
    assert PoolOrder.model_validate_json(base64.b64decode(secret["data"]["pool-order.json"])) == ORDER
    assert base64.b64decode(secret["data"]["RLRUN_TOKEN"]).decode() == TOKEN


def test_the_pool_has_its_number_of_engines_and_a_service_that_lists_them() -> None:
    found = build(inference={"replicas": 7})
    assert found["Deployment"]["spec"]["replicas"] == 2
    service = found["Service"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert {p["name"]: p["port"] for p in service["ports"]} == {"openai": 8000, "sidecar": 8001}
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert found["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert RUN_LABEL not in labels, "no run counts these pods as its own"


def test_orchestrators_and_the_platform_reach_engines_and_trainer_and_user_code_does_not() -> None:
    found = build(platform(leaseNamespace="home"))
    policy = found["NetworkPolicy"]["spec"]
    asking, loading = policy["ingress"]
    orchestrators, platforms = asking["from"]
    assert orchestrators == {"podSelector": {"matchLabels": {"rlrun.dev/role": "orchestrator"}}}
    assert platforms == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "home"}}}
    assert [p["port"] for p in asking["ports"]] == [8000, 8001, 8080]
    (engines,) = loading["from"]
    assert engines["podSelector"]["matchLabels"].items() <= labels_of(found["Deployment"]).items()
    assert [p["port"] for p in loading["ports"]] == [8080]
    for kind in ("Deployment", "TrainerDeployment"):
        assert policy["podSelector"]["matchLabels"].items() <= labels_of(found[kind]).items()
    assert policy["egress"] == [{}]


def test_prometheus_reaches_sidecars_and_the_trainer() -> None:
    (*_, scraping) = build(platform(metricsPeers=[{"podSelector": {}}]))["NetworkPolicy"]["spec"]["ingress"]
    assert [p["port"] for p in scraping["ports"]] == [8001, 8080]


def labels_of(deployment: Obj) -> Obj:
    return dict(deployment["spec"]["template"]["metadata"]["labels"])


def test_with_limited_egress_the_sidecar_reaches_the_trainers_of_runs() -> None:
    policy = build(platform(modelEgress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]))["NetworkPolicy"]["spec"]
    trainers = {"podSelector": {"matchLabels": {"rlrun.dev/role": "trainer"}}}
    assert {"to": [trainers], "ports": [{"port": 8080, "protocol": "TCP"}]} in policy["egress"]
    assert {} not in policy["egress"]


@pytest.mark.parametrize(
    "change",
    [
        {"source": HUB},
        {"seqLen": 1024},
        {"lora": {"rank": 64}},
        {"inference": {"gpus": 2}},
        {"sharing": {**SHARED, "maxRuns": 5}},
        {"sharing": {**SHARED, "maxRuns": 63}},
        {"sharing": {**SHARED, "engines": 3}},
        {"sharing": {**SHARED, "recoverySeconds": 61}},
        {"trainer": {"microBatchTokens": 1}, "lora": {"rank": 8}},
        {"trainer": {"resources": {"limits": {"memory": "1Gi"}}}},
        {"trainer": {"gpus": 0}},
        {"trainer": {"gpus": 2}},
    ],
    ids=json.dumps,
)
def test_another_template_is_another_pool(change: Obj) -> None:
    assert shared_pool("team", model(**change), platform()) != shared_pool("team", model(), platform())


def test_other_settings_are_another_pool_and_trainers_of_runs_are_not() -> None:
    pool = shared_pool("team", model(), platform())
    assert shared_pool("team", model(), platform(imagePullSecrets=["pull"])) != pool
    images = {"trainer": {"repository": "r/trainer", "tag": "2"}}
    assert shared_pool("team", model(), platform(images=images)) != pool
    assert shared_pool("team", model(trainer={"nodes": 2}), platform()) == shared_pool(
        "team", model(trainer={"gpus": 4}), platform(images=images)
    )
    assert shared_pool("team", model(sharing={**SHARED, "idleSeconds": 1}), platform()) == pool
    assert shared_pool("other", model(), platform()).name == pool.name


def test_the_name_of_a_pool_has_model_and_digest_and_is_never_that_of_a_serving_pool() -> None:
    pool = shared_pool("team", model(), platform())
    assert pool.name == f"rlpool-a-b-{pool.digest}"
    assert pool_named("team", "a/b", pool.name) == pool
    assert pool.name != POOL.name
    assert len(PoolIdentity("team", "x" * 200, "0" * 8).trainer) <= 63


def test_an_idle_pool_keeps_its_gpus_for_a_day_at_most() -> None:
    assert model(sharing={**SHARED, "idleSeconds": 86_400}).sharing.idle_seconds == 86_400
    with pytest.raises(ValidationError, match="idleSeconds"):
        model(sharing={**SHARED, "idleSeconds": 86_401})


def test_pods_come_after_what_they_need() -> None:
    assert list(build())[-2:] == ["Deployment", "TrainerDeployment"]


def test_the_trainer_trains_the_runs_in_the_order_and_has_no_grant_in_a_variable() -> None:
    found = build(
        sharing={**SHARED, "recoverySeconds": 90}, trainer={"env": [{"name": "RLRUN_TOKEN", "value": "mine"}]}
    )
    trainer, secret = container(found, "trainer"), found["Secret"]
    env = variables(trainer)
    assert trainer["command"] == ["python", "-m", "rlrun_trainer"]
    token = env["RLRUN_TOKEN"]["secretKeyRef"]
    assert (token["name"], token["key"]) == (secret["metadata"]["name"], "RLRUN_TOKEN")
    assert (env["RLRUN_SLOTS"], env["RLRUN_RECOVERY_SECONDS"]) == ("4", "90")
    assert env["RLRUN_ORDER_PATH"] == "/etc/rlrun/pool/trainer-order.json"
    assert not {"RLRUN_STORAGE_GRANT", "RLRUN_KEEP_POLICIES"} & env.keys()
    assert "envFrom" not in trainer
    assert TrainerOrder.model_validate_json(base64.b64decode(secret["data"]["trainer-order.json"])) == TRAINER_ORDER


def test_each_pod_of_a_pool_mounts_only_its_order() -> None:
    found = build()
    for kind, key in (("Deployment", "pool-order.json"), ("TrainerDeployment", "trainer-order.json")):
        volumes = {v["name"]: v for v in found[kind]["spec"]["template"]["spec"]["volumes"]}
        assert volumes["order"]["secret"]["items"] == [{"key": key, "path": key}]


def test_deaths_are_counted_in_a_small_volume_that_outlives_the_container() -> None:
    found = build()
    trainer = container(found, "trainer")
    paths = {m["mountPath"]: m["name"] for m in trainer["volumeMounts"]}
    folder = variables(trainer)["RLRUN_DEATHS_FILE"].rpartition("/")[0]
    volumes = {v["name"]: v for v in found["TrainerDeployment"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes[paths[folder]]["emptyDir"] == {"sizeLimit": "1Mi"}


def test_two_trainers_of_a_pool_never_run_for_a_change_of_the_template() -> None:
    spec = build()["TrainerDeployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_services_and_deployments_of_a_pool_select_only_their_pods() -> None:
    found = build()
    engines, trainer = labels_of(found["Deployment"]), labels_of(found["TrainerDeployment"])
    assert trainer["rlrun.dev/role"] == "trainer", "network policies select trainers by their role"
    for kinds, own, other in (("Deployment", engines, trainer), ("TrainerDeployment", trainer, engines)):
        for selector in (
            found[kinds]["spec"]["selector"]["matchLabels"],
            found[kinds.replace("Deployment", "Service")]["spec"]["selector"],
        ):
            assert selector.items() <= own.items()
            assert not selector.items() <= other.items()
    assert [p["port"] for p in found["TrainerService"]["spec"]["ports"]] == [8080]


@pytest.mark.parametrize(("runs", "size"), [(1, 64), (8, 8), (64, 1)])
def test_snapshots_of_all_runs_of_a_trainer_take_64_gib(runs: int, size: int) -> None:
    trainer = container(build(sharing={**SHARED, "maxRuns": runs}), "trainer")
    assert variables(trainer)["RLRUN_UPLOAD_BYTES"] == str(size * 1024**3)


def test_the_pods_of_a_run_and_a_pool_train_alike() -> None:
    """Only access, order and slots differ."""
    own = templates(build_run({"trainer": {"gpus": 1, "env": [{"name": "A", "value": "b"}]}}))["reverse-trainer"]
    shared = build(
        OperatorSettings.model_validate({**SETTINGS.to_json_dict()}),
        trainer={"gpus": 1, "env": [{"name": "A", "value": "b"}]},
    )["TrainerDeployment"]["spec"]["template"]
    one, two = (container_of(template, "trainer") for template in (own, shared))
    for key in ("image", "command", "resources", "startupProbe", "livenessProbe", "readinessProbe", "securityContext"):
        assert one[key] == two[key]
    names = {"SLOTS", "RECOVERY_SECONDS", "UPLOAD_BYTES", "ORDER_PATH", "DEATHS_FILE", "TOKEN"}
    names |= {"KEEP_POLICIES", "STORAGE_GRANT"}
    assert variables(two).keys() ^ variables(one).keys() == {f"RLRUN_{name}" for name in names}


@pytest.mark.parametrize(
    ("trainer", "is_shared"),
    [
        ({"gpus": 0}, True),
        ({"gpus": 1}, True),
        ({"gpus": 2}, False),
        ({"nodes": 2}, False),
        ({"gpus": 0, "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}, True),
        ({"gpus": 0, "resources": {"limits": {"nvidia.com/mig-1g.10gb": "2"}}}, False),
    ],
    ids=json.dumps,
)
def test_a_trainer_of_one_process_is_shared(trainer: Obj, is_shared: bool) -> None:
    found = build(trainer=trainer)
    assert ("TrainerDeployment" in found, "TrainerService" in found) == (is_shared, is_shared)
    assert ("trainer-order.json" in found["Secret"]["data"]) == is_shared
    assert not resolved({"trainer": trainer}).trains_in_pool
    assert resolved({"trainer": trainer}, pool="rlpool-a-b-0").trains_in_pool == is_shared


def test_the_model_chooses_the_priority_class_of_shared_engines() -> None:
    pod = build(inference={"priorityClassName": "high"})["Deployment"]["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "high"


def test_a_new_run_changes_the_secret_only() -> None:
    before = build()
    after = build(order=ORDER.model_copy(update={"runs": []}))
    assert [kind for kind in after if differs(after[kind], before[kind])] == ["Secret"]


def test_the_schema_allows_as_many_runs_as_an_order() -> None:
    (limit,) = (m.le for m in Sharing.model_fields["max_runs"].metadata if hasattr(m, "le"))
    assert limit == MAX_RUNS


def test_the_sidecars_of_its_pool_reach_the_trainer_of_a_run() -> None:
    own = resolved()
    pooled = own.model_copy(update={"endpoints": own.endpoints.model_copy(update={"pool": "rlpool-a-b-0"})})
    for run, labels in ((own, {"rlrun.dev/run": "reverse", "rlrun.dev/role": "inference"}), (pooled, SERVED)):
        processes = network_policies(IDENTITY, SETTINGS, run)[1]["spec"]
        rule = {"from": [{"podSelector": {"matchLabels": labels}}], "ports": [{"port": 8080, "protocol": "TCP"}]}
        assert rule in processes["ingress"]


SERVED = {"rlrun.dev/serving": "rlpool-a-b-0"}
