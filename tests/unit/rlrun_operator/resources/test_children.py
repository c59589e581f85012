import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError
from rlrun.api.base.pod_shape import OWN_CONTAINERS
from rlrun.api.base.s3_connection import S3Connection
from rlrun.api.model import OWNED_FLAGS, PARALLEL_FLAGS, RLModelSpec
from rlrun.constants import (
    FIELD_MANAGER,
    LOG_HOLD_CONTAINER,
    LOG_HOLD_PORT,
    LOG_HOLD_SECONDS,
    MANAGED_BY_LABEL,
    ROLE_LABEL,
)
from rlrun.kube.objects import Obj
from rlrun.protocol import signed_text
from rlrun.protocol.egress import GrantError, verify
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.storage_access import StorageGrant, StorageRole
from rlrun_operator.config.settings import EgressSettings, S3Settings, SecretRef
from rlrun_operator.kueue.workload import workload
from rlrun_operator.resources.access.egress import EgressAccess
from rlrun_operator.resources.access.run_tokens import environment_token, run_token
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.inference import engine_args, vllm_max_lora_rank
from rlrun_operator.resources.platform import s3_variables
from rlrun_operator.resources.weights_cache import cache_identity, cache_objects

from tests.support.built_children import (
    HUB,
    IDENTITY,
    SETTINGS,
    SOURCES,
    Children,
    all_containers,
    build,
    build_pool,
    changed,
    container_of,
    containers,
    resolved,
    templates,
    told,
    variables,
)
from tests.support.cluster_objects import STORAGE_KEY
from tests.support.expectations import lacks, present

VARIABLES = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


def test_names() -> None:
    assert set(templates(build())) == {
        "reverse-trainer",
        "reverse-inference",
        "reverse-env-0",
        "reverse-env-1",
        "reverse-eval-0",
        "reverse-orchestrator-a2",
    }


def test_every_child_is_owned_and_labelled() -> None:
    for child in build().values():
        owner = child["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("uid-1", True, True)
        labels = child["metadata"]["labels"]
        assert (labels["rlrun.dev/run"], labels["rlrun.dev/attempt"]) == ("reverse", "2")
        assert child["metadata"]["annotations"]["rlrun.dev/generation"] == "7"


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({}, {"runAsNonRoot": True}),
        ({"fsGroup": 7}, {"runAsNonRoot": True, "fsGroup": 7}),
        (
            {"runAsUser": 5, "runAsGroup": 0, "seccompProfile": {"type": "Localhost", "localhostProfile": "a"}},
            {
                "runAsNonRoot": True,
                "runAsUser": 5,
                "runAsGroup": 0,
                "seccompProfile": {"type": "Localhost", "localhostProfile": "a"},
            },
        ),
    ],
)
def test_the_settings_name_the_user_of_pods_or_leave_it_to_the_cluster(context: Obj, expected: Obj) -> None:
    made = templates(build(settings=changed(securityContext=context)))
    assert [template["spec"]["securityContext"] for template in made.values()] == [expected] * 6


def test_every_pod_has_a_log_hold_that_starts_first_ends_last_and_has_nothing_to_take() -> None:
    children = build()
    for name, template in templates(children).items():
        hold = template["spec"]["initContainers"][0]
        assert (hold["name"], hold["restartPolicy"]) == (LOG_HOLD_CONTAINER, "Always"), name
        assert hold["command"] == ["python", "-m", "rlrun.service.containers.log_hold", str(LOG_HOLD_SECONDS)]
        assert {mount["name"] for mount in hold["volumeMounts"]} == {"tmp"}
        assert "envFrom" not in hold
        assert hold["image"] == SETTINGS.images.orchestrator.reference, "of the operator's version"
    for policy in ("user-code", "processes"):
        opened = [
            port["port"]
            for rule in children["NetworkPolicy", f"reverse-{policy}"]["spec"]["ingress"]
            for port in rule["ports"]
            if "namespaceSelector" in rule["from"][0]
        ]
        assert LOG_HOLD_PORT in opened


def test_dns_is_reached_at_the_port_of_its_pods() -> None:
    policy = build(settings=changed(dns={"port": 5353}))["NetworkPolicy", "reverse-user-code"]
    assert {p["port"] for p in policy["spec"]["egress"][1]["ports"]} == {5353}


@pytest.mark.parametrize("source", SOURCES)
def test_every_pod_is_locked_down(source: str) -> None:
    for name, template in templates(build({"source": source})).items():
        spec = template["spec"]
        assert (spec["enableServiceLinks"], spec["automountServiceAccountToken"]) == (False, False), name
        user, profile = spec["securityContext"]["runAsUser"], spec["securityContext"]["seccompProfile"]
        assert (user, profile) == (1000, {"type": "RuntimeDefault"})
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
        for container in all_containers(template):
            context = container["securityContext"]
            # The toolkits of GPU vendors write into the root filesystem of the container with the GPUs.
            has_gpus = "nvidia.com/gpu" in container.get("resources", {}).get("limits", {})
            assert context["readOnlyRootFilesystem"] is not has_gpus
            assert has_gpus == (container["name"] in ("trainer", "vllm", "gpu-check"))
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["allowPrivilegeEscalation"] is False
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.proves("envFrom.secretRef.name")
def test_only_the_platforms_own_code_has_the_tokens_of_the_run() -> None:
    for name, template in templates(build()).items():
        for container in containers(template):
            secrets = [e["secretRef"]["name"] for e in container.get("envFrom", [])]
            if name.startswith(("reverse-env", "reverse-eval")):
                linked, *named = secrets
                assert (linked[:6], named) == ("env.o.", ["judge"])
            elif container["name"] in ("vllm", "fetch-model", "engine-access", "gpu-check"):
                assert secrets == []
            else:
                assert secrets == ["reverse-rlrun-token"]


USES_S3 = {
    "fetch-model": StorageRole.fetcher,
    "trainer": StorageRole.trainer,
    "sidecar": StorageRole.inference,
    "orchestrator": StorageRole.orchestrator,
}


@pytest.mark.parametrize("source", ["s3://rlrun/models/a", HUB])
def test_pods_use_s3_by_a_token_of_their_role_and_have_no_credentials(source: str) -> None:
    for name, template in templates(build({"source": source})).items():
        volumes = {v["name"]: v for v in template["spec"]["volumes"]}
        for container in containers(template):
            given = variables(container)
            tokens = [m for m in container["volumeMounts"] if "projected" in volumes.get(m["name"], {})]
            role = USES_S3.get(container["name"])
            if role is None or (role is StorageRole.fetcher and source.startswith("hf://")):
                assert not tokens, (name, container["name"])
                assert not any(v.startswith(("AWS_", "RLRUN_STORAGE")) for v in given)
                continue
            (mount,) = tokens
            assert mount["readOnly"]
            assert given["RLRUN_STORAGE_TOKEN_FILE"] == f"{mount['mountPath']}/token"
            (projected,) = volumes[mount["name"]]["projected"]["sources"]
            assert projected["serviceAccountToken"]["audience"] == f"rlrun/uid-1/{role}"
            grant = present(signed_text.verify(given["RLRUN_STORAGE_GRANT"], [STORAGE_KEY], StorageGrant))
            assert (grant.namespace, grant.owner, grant.role) == ("team", "uid-1", role)
            assert grant.folder == "s3://rlrun/prod/team/uid-1"
            assert not any(v.startswith("AWS_") for v in given)
            assert S3Connection.of_variables(given).endpoint == "http://s3:8333"


def test_pods_trust_the_authority_of_the_settings_alone() -> None:
    found = templates(build(settings=SETTINGS.model_copy(update={"storage_server_authority": "PEM"})))
    given = [variables(container) for template in found.values() for container in containers(template)]
    authorities = [v.get("RLRUN_STORAGE_SERVER_AUTHORITY") for v in given if "RLRUN_STORAGE_SERVER" in v]
    assert authorities == ["PEM"] * 5


def test_grants_name_what_each_role_reads_outside_of_its_run() -> None:
    warm_start = "s3://rlrun/prod/other/uid-0/checkpoints/step-000004"
    plan = resolved()
    readable = {}
    for template in templates(build(warm_start_from=warm_start)).values():
        for container in containers(template):
            text = variables(container).get("RLRUN_STORAGE_GRANT", "")
            if grant := signed_text.verify(text, [STORAGE_KEY], StorageGrant):
                readable[grant.role.value] = grant.readable
    root = "s3://rlrun/prod/environments"
    assert readable == {
        "fetcher": ["s3://rlrun/models/a"],
        "trainer": [warm_start],
        "inference": [],
        "orchestrator": sorted({f"{root}/{entry.id}" for entry in (*plan.spec.env, *plan.spec.eval.env)}),
    }


@pytest.mark.proves("envFrom.secretRef.optional")
def test_an_environment_starts_without_a_secret_that_is_optional() -> None:
    sources = [{"secretRef": {"name": "judge"}}, {"secretRef": {"name": "extra", "optional": True}}]
    (container,) = containers(templates(build(envFrom=sources))["reverse-env-0"])
    found = {entry["secretRef"]["name"]: bool(entry["secretRef"].get("optional")) for entry in container["envFrom"]}
    assert found == {"env.o.e": True, "judge": False, "extra": True}


@pytest.mark.proves("env.id", "env.version", "env.args")
def test_environment_pod_gets_its_id_arguments_and_packages_url() -> None:
    pod = templates(build())["reverse-env-0"]
    assert told(pod) == {
        "id": "o/e@1.0",
        "name": "e",
        "args": {"n": 1},
        "workers": 1,
        "packagesUrl": "http://reverse-orchestrator.team.svc:8000",
    }
    assert container_of(pod, "environment")["resources"] == {
        "requests": {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "64Mi"},
        "limits": {"memory": "2Gi", "ephemeral-storage": "10Gi"},
    }


@pytest.mark.proves("env.name", "env.taskset", "env.harness")
def test_training_environment_pod_gets_its_name_taskset_and_harness() -> None:
    entry = {"id": "o/e", "name": "words", "taskset": {"num_examples": 10}, "harness": {"max_turns": 8}}
    found = told(templates(build(env=[entry]))["reverse-env-0"])
    assert (found["name"], found["taskset"], found["harness"]) == ("words", {"num_examples": 10}, {"max_turns": 8})


@pytest.mark.proves("maxAsyncLevel", "maxOffPolicySteps")
@pytest.mark.parametrize(("level", "oldest", "adapters"), [(2, 2, 5), (2, 6, 9), (0, 6, 3)])
def test_the_engine_has_room_for_the_policies_that_may_be_in_use(level: int, oldest: int, adapters: int) -> None:
    oversampling = {"oversamplingFactor": 1.0} if level == 0 else {}
    args = engine_args(resolved(maxAsyncLevel=level, maxOffPolicySteps=oldest, **oversampling))
    assert args[args.index("--max-loras") + 1] == str(adapters)


@pytest.mark.proves("model")
def test_engine_arguments_fit_the_stock_vllm_image() -> None:
    args = engine_args(resolved({"lora": {"rank": 24}, "inference": {"gpus": 1, "extraArgs": ["--enforce-eager"]}}))
    pairs = dict(zip(args[1::2], args[2::2], strict=False))
    assert args[0] == "/models/base", "`vllm serve` takes the model first"
    assert pairs["--served-model-name"] == "a/b"
    # maxOffPolicySteps 8 needs ten adapters, and the evaluation one of its own.
    expected = ["--max-loras 11", "--max-lora-rank 32", "--max-model-len 512", "--logprobs-mode processed_logprobs"]
    assert not lacks(" ".join(args), *expected)
    assert args[-1] == "--enforce-eager"
    ours = {argument for argument in args[:-1] if argument.startswith("--")}
    assert ours <= set(OWNED_FLAGS), "an RLModel's extraArgs come later and would win"


@pytest.mark.parametrize(
    ("gpus", "parallelism", "expected"),
    [
        (1, {}, []),
        (0, {}, []),
        (4, {}, ["--tensor-parallel-size", "4"]),
        (8, {"pipeline": 4}, ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "4"]),
        (3, {"tensor": 1, "pipeline": 3}, ["--pipeline-parallel-size", "3"]),
        (
            8,
            {"tensor": 2, "data": 4},
            ["--tensor-parallel-size", "2", "--data-parallel-size", "4", "--api-server-count", "1"],
        ),
    ],
)
def test_an_engine_uses_all_gpus_of_its_pod(gpus: int, parallelism: Obj, expected: list[str]) -> None:
    args = engine_args(resolved({"inference": {"gpus": gpus, "parallelism": parallelism, "extraArgs": ["--x"]}}))
    before = args[args.index("--allowed-media-domains") + 2 : -1]
    assert before == expected
    assert {argument for argument in before if argument.startswith("--")} <= set(PARALLEL_FLAGS)


def trainer(model: Obj | None = None, **run: Any) -> Obj:
    return container_of(templates(build(model, **run))["reverse-trainer"], "trainer")


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ({"gpus": 8}, None),
        ({"gpus": 8, "shardSize": 4}, "4"),
        ({"gpus": 8, "nodes": 2}, "8"),
        ({"gpus": 8, "nodes": 2, "shardSize": 16}, "16"),
    ],
)
def test_the_gpus_of_a_node_divide_the_weights_by_default(shape: Obj, size: str | None) -> None:
    found = templates(build({"trainer": shape}))
    main = container_of(found["reverse-trainer-a2" if "nodes" in shape else "reverse-trainer"], "trainer")
    assert variables(main).get("RLRUN_SHARD_SIZE") == size


def environment(template: Obj, name: str) -> Obj:
    return variables(container_of(template, name))


def test_a_closed_port_ends_an_engine_soon_and_a_silent_one_late() -> None:
    vllm, sidecar = templates(build())["reverse-inference"]["spec"]["containers"]
    live = vllm["livenessProbe"]
    assert "httpGet" not in live, "a busy server may be silent for a minute"
    assert live["tcpSocket"] == {"port": "openai"}
    assert live["periodSeconds"] * live["failureThreshold"] <= 15
    assert live["terminationGracePeriodSeconds"] <= 5
    live = sidecar["livenessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] >= 300


@pytest.mark.proves("lora.enabled")
def test_the_engine_of_a_run_that_trains_all_weights_takes_weights_and_no_adapters() -> None:
    full = {"lora": {"enabled": False}}
    shape = {"trainer": {"fullFineTuning": True}}
    assert not any("lora" in argument for argument in engine_args(resolved(shape, **full)))
    found = templates(build(shape, **full))["reverse-inference"]
    assert environment(found, "vllm")["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment(found, "vllm")
    assert environment(found, "sidecar")["RLRUN_POLICY_KIND"] == "weights"
    usual = templates(build())["reverse-inference"]
    assert "VLLM_SERVER_DEV_MODE" not in environment(usual, "vllm"), "its routes are not for runs that need none"
    assert environment(usual, "vllm")["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert environment(usual, "sidecar")["RLRUN_POLICY_KIND"] == "adapter"


@pytest.mark.parametrize(("rank", "expected"), [(1, 8), (8, 8), (9, 16), (16, 16), (257, 320), (512, 512)])
def test_rank_is_rounded_up_to_what_the_engine_knows(rank: int, expected: int) -> None:
    assert vllm_max_lora_rank(rank) == expected


@pytest.mark.parametrize(("gpus", "limit"), [(0, None), (4, "4")])
def test_gpus(gpus: int, limit: str | None) -> None:
    limits = trainer({"trainer": {"gpus": gpus}}).get("resources", {}).get("limits", {})
    assert limits.get("nvidia.com/gpu") == limit


def test_claim_is_mounted_and_nothing_fetched() -> None:
    template = templates(build({"source": "pvc://weights/qwen/4b"}))["reverse-trainer"]
    found = template["spec"]
    assert [c["name"] for c in containers(template)] == ["gpu-check", "trainer"]
    mount = {"name": "models", "mountPath": "/models/base", "readOnly": True, "subPath": "qwen/4b"}
    assert mount in found["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(("path", "folder"), [("", {}), ("/models/qwen", {"subPath": "models/qwen"})])
def test_image_is_mounted_and_nothing_fetched(path: str, folder: dict[str, str]) -> None:
    image = f"registry:5000/models/qwen@sha256:{'0' * 64}"
    for name in ("reverse-trainer", "reverse-inference"):
        found = templates(build({"source": f"oci://{image}{path}"}))[name]["spec"]
        assert [c["name"] for c in found["initContainers"] if c["name"] == "fetch-model"] == []
        (volume,) = [v for v in found["volumes"] if v["name"] == "models"]
        assert volume["image"] == {"reference": image, "pullPolicy": "IfNotPresent"}
        mount = {"name": "models", "mountPath": "/models/base", "readOnly": True, **folder}
        assert mount in found["containers"][0]["volumeMounts"]


def test_hub_token_reaches_the_fetcher_and_nothing_else_does() -> None:
    env = [{"name": "HF_TOKEN", "value": "t"}, {"name": "OTHER", "value": "x"}]
    found = templates(build({"source": HUB, "trainer": {"env": env}}))["reverse-trainer"]
    names = variables(container_of(found, "fetch-model"))
    assert "HF_TOKEN" in names
    assert "OTHER" not in names


def test_services() -> None:
    found = build()
    inference = found[("Service", "reverse-inference")]["spec"]
    assert inference["clusterIP"] == "None"
    assert inference["publishNotReadyAddresses"], "found while they start: the orchestrator asks who is ready"
    ports = {p["name"]: p["port"] for p in found[("Service", "reverse-orchestrator")]["spec"]["ports"]}
    assert ports == {"gateway": 8000, "status": 8080}
    for (kind, _), child in found.items():
        if kind == "Service":
            assert "rlrun.dev/attempt" not in child["spec"]["selector"]
        if kind == "ReplicaSet":
            assert child["spec"]["selector"]["matchLabels"]["rlrun.dev/attempt"] == "2", "never pods of another attempt"


def test_user_code_reaches_the_gateway_and_dns_alone() -> None:
    policy = build()[("NetworkPolicy", "reverse-user-code")]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    gateway, dns = policy["egress"]
    assert gateway["to"] == [
        {"podSelector": {"matchLabels": {"rlrun.dev/run": "reverse", "rlrun.dev/role": "orchestrator"}}}
    ]
    assert gateway["ports"] == [{"port": 8088, "protocol": "TCP"}]
    assert {p["port"] for p in dns["ports"]} == {53}
    system = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    assert dns["to"] == [{"namespaceSelector": system, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]


PROXY = EgressSettings(
    host="rlrun-egress.sys.svc",
    allowed=["judge.example.com"],
    key_secret=SecretRef(namespace="sys", name="rlrun-egress"),
)
KEY = b"k" * 32
START = datetime(2026, 1, 1, tzinfo=UTC)
JUDGED = [{"id": "o/plain"}, {"id": "o/judged", "egress": ["judge.example.com", "evil.org"]}]


def build_with_proxy(access: EgressAccess | None) -> Children:
    return build(settings=SETTINGS.model_copy(update={"egress": PROXY}), access={"egress": access}, env=JUDGED)


@pytest.mark.proves("env.egress")
def test_an_environment_gets_a_grant_for_those_of_its_hosts_that_are_allowed() -> None:
    found = build_with_proxy(EgressAccess(PROXY, (), KEY, START))
    plain, judged = (environment(templates(found)[f"reverse-env-{i}"], "environment") for i in (0, 1))
    assert not any("proxy" in name.lower() for name in plain)
    url = urlsplit(judged["HTTPS_PROXY"])
    assert (url.scheme, url.username, url.hostname, url.port) == ("http", "rlrun", "rlrun-egress.sys.svc", 3128)
    assert {judged[name] for name in ("https_proxy", "HTTP_PROXY", "http_proxy")} == {judged["HTTPS_PROXY"]}
    assert "reverse-orchestrator.team.svc" in judged["NO_PROXY"]
    grant = verify(url.password or "", [KEY], START)
    assert (grant.namespace, grant.run, grant.uid, grant.environment) == ("team", "reverse", "uid-1", "env-1")
    # A user who can write the attempt's ConfigMap could begin an attempt whose hosts were never checked.
    assert grant.hosts == ["judge.example.com"]
    with pytest.raises(GrantError, match="expired"):
        verify(url.password or "", [KEY], START + timedelta(days=31))


def test_no_other_pod_has_a_grant() -> None:
    found = build_with_proxy(EgressAccess(PROXY, (), KEY, START))
    with_proxy = [name for (_, name), child in found.items() if "rlrun-egress.sys.svc" in json.dumps(child)]
    assert with_proxy == ["reverse-env-1"]


def test_without_a_key_the_environments_that_need_a_grant_are_left_out() -> None:
    found = build_with_proxy(None)
    assert ("ReplicaSet", "reverse-env-0") in found
    assert ("ReplicaSet", "reverse-env-1") not in found


def test_a_run_whose_environments_list_hosts_may_reach_the_proxy() -> None:
    *_, outside = build_with_proxy(None)["NetworkPolicy", "reverse-user-code"]["spec"]["egress"]
    assert outside["ports"] == [{"port": 3128, "protocol": "TCP"}]
    (peer,) = outside["to"]
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/component": "egress-proxy"}
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": SETTINGS.lease_namespace}


def build_with_tokens(model: Obj | None = None) -> Children:
    return build(model, access={"token_key": KEY})


def test_the_platforms_pods_have_the_token_of_the_run() -> None:
    found = build_with_tokens()
    data = {k: base64.b64decode(v).decode() for k, v in found["Secret", "reverse-rlrun-token"]["data"].items()}
    assert data["RLRUN_TOKEN"] == run_token(KEY, "uid-1")
    assert data["RLRUN_ENVIRONMENT_TOKEN"] == environment_token(KEY, "uid-1")
    key = environment(templates(found)["reverse-inference"], "vllm")["VLLM_API_KEY"]
    assert key["secretKeyRef"] == {"name": "reverse-rlrun-token", "key": "RLRUN_TOKEN", "optional": True}


def test_an_rlmodel_cannot_give_the_engine_another_token() -> None:
    model = {"inference": {"env": [{"name": "VLLM_API_KEY", "value": "known"}]}}
    engine = container_of(templates(build_with_tokens(model))["reverse-inference"], "vllm")
    (key,) = [e for e in engine["env"] if e["name"] == "VLLM_API_KEY"]
    assert "value" not in key


def test_environments_have_their_own_token_only() -> None:
    found = build_with_tokens()
    for name in ("reverse-env-0", "reverse-env-1", "reverse-eval-0"):
        assert environment(templates(found)[name], "environment")["RLRUN_TOKEN"] == environment_token(KEY, "uid-1")
    readable = [c for (kind, _), c in found.items() if kind != "Secret"]
    assert run_token(KEY, "uid-1") not in json.dumps(readable)


def test_without_a_key_no_process_asks_for_a_token() -> None:
    found = build()
    assert "RLRUN_TOKEN" not in found["Secret", "reverse-rlrun-token"]["data"]
    assert "RLRUN_TOKEN" not in environment(templates(found)["reverse-env-0"], "environment")


def test_job_ends_at_a_mistake_and_survives_disruptions() -> None:
    job = build()[("Job", "reverse-orchestrator-a2")]["spec"]
    fail, ignore = job["podFailurePolicy"]["rules"]
    assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [64])
    assert ignore["action"] == "Ignore"
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_the_operators_own_access_to_s3() -> None:
    source = {**VARIABLES, "unrelated": "x"}
    found = s3_variables(SETTINGS, source)
    assert found == {**VARIABLES, "RLRUN_S3_CONNECTION": '{"endpoint":"http://s3:8333"}'}


def test_pods_and_the_operator_find_the_bucket_in_the_host_name() -> None:
    s3 = S3Settings.model_validate(SETTINGS.s3.model_dump() | {"addressing_style": "virtual"})
    settings = SETTINGS.model_copy(update={"s3": s3})
    client = StorageAccess(settings, STORAGE_KEY, "team", "uid-1").client(StorageRole.trainer)
    for given in (s3_variables(settings, {}), client.env):
        assert S3Connection.of_variables(given).addressing_style == "virtual"


def test_a_bucket_without_a_host_name_is_refused_by_the_settings() -> None:
    wrong = {"addressing_style": "virtual", "endpoint": "https://s3.example.com", "bucket": "my.bucket"}
    with pytest.raises(ValidationError, match=r"s3\.addressingStyle is virtual"):
        S3Settings.model_validate(SETTINGS.s3.model_dump() | wrong)


def test_config_reads_back_as_the_resolved_run() -> None:
    text = build()[("ConfigMap", "reverse-config")]["data"]["run.json"]
    found = ResolvedRun.model_validate_json(text)
    assert found == resolved()
    assert found.spec.checkpoints.interval == 50
    uris = (found.artifacts.run_uri, found.artifacts.environments_uri)
    assert uris == ("s3://rlrun/prod/team/uid-1", "s3://rlrun/prod/environments")
    assert [(e.name, e.use.value, e.url) for e in found.endpoints.environments] == [
        ("e", "train", "http://reverse-env-0.team.svc:8080"),
        ("second", "train", "http://reverse-env-1.team.svc:8080"),
        ("g", "eval", "http://reverse-eval-0.team.svc:8080"),
    ]


def test_longest_name_fits_everywhere() -> None:
    identity = RunIdentity("team", "r" * 40, "u", 99, 1)
    for name in (identity.orchestrator_job, identity.environment(15, "train"), identity.child("environment")):
        assert len(name) <= 63 - len("-xxxxx")


def test_a_trainer_with_several_gpus_has_a_process_for_each() -> None:
    assert " ".join(trainer({"trainer": {"gpus": 4}})["command"]) == (
        "python -m torch.distributed.run --nproc-per-node 4 --nnodes 1 --node-rank 0 "
        "--master-addr 127.0.0.1 --master-port 29500 --shutdown-timeout 56 -m rlrun_trainer"
    )


@pytest.mark.parametrize(("oldest", "kept"), [(2, "8"), (8, "11"), (20, "23")])
def test_the_trainer_keeps_the_policies_that_an_engine_may_load_again(oldest: int, kept: str) -> None:
    assert variables(trainer(maxOffPolicySteps=oldest))["RLRUN_KEEP_POLICIES"] == kept


@pytest.mark.parametrize("grace", [None, 20, 600])
def test_a_trainer_has_time_for_a_last_checkpoint(grace: int | None) -> None:
    model = {"trainer": {"gpus": 4, **({"terminationGracePeriodSeconds": grace} if grace else {})}}
    template = templates(build(model))["reverse-trainer"]
    main = container_of(template, "trainer")
    own = float(variables(main)["RLRUN_SHUTDOWN_SECONDS"])
    torchrun = float(main["command"][main["command"].index("--shutdown-timeout") + 1])
    # The trainer is done first, then torchrun, and the kubelet has not lost patience with either.
    assert own + 3 < torchrun < (grace or 60)
    assert template["spec"]["terminationGracePeriodSeconds"] == (grace or 60) + LOG_HOLD_SECONDS
    assert own == (grace or 60) - 10


def test_grace_periods_are_those_of_the_installation_unless_the_model_has_its_own() -> None:
    periods = {"orchestrator": 300, "trainer": 120, "inference": 45, "environment": 3}
    settings = changed(terminationGracePeriodSeconds=periods)

    def graces(found: dict[str, Obj]) -> dict[str, int]:
        specs = {t["metadata"]["labels"][ROLE_LABEL]: t["spec"] for t in found.values()}
        return {role: spec["terminationGracePeriodSeconds"] - LOG_HOLD_SECONDS for role, spec in specs.items()}

    plain = templates(build(settings=settings))
    assert graces(plain) == periods
    stop = environment(plain["reverse-orchestrator-a2"], "orchestrator")["RLRUN_STOP_DEADLINE"]
    assert int(stop) + 10 < periods["orchestrator"], "then servers and connections close"
    shorter = {role: {"terminationGracePeriodSeconds": 77} for role in ("trainer", "inference")}
    own = graces(templates(build(shorter, settings=settings)))
    assert (own["trainer"], own["inference"]) == (77, 77)


def test_a_trainer_on_several_nodes_is_an_indexed_job_whose_first_pod_listens() -> None:
    found = build({"trainer": {"gpus": 8, "nodes": 2}})
    assert ("ReplicaSet", "reverse-trainer") not in found
    job = found["Job", "reverse-trainer-a2"]["spec"]
    assert (job["completionMode"], job["parallelism"], job["completions"]) == ("Indexed", 2, 2)
    main = job["template"]["spec"]["containers"][0]
    assert "--nnodes 2 --node-rank $(JOB_COMPLETION_INDEX)" in " ".join(main["command"])
    # The pod's DNS name is <job>-<index>.<subdomain>.<namespace>.svc, where the subdomain is a headless Service.
    assert "reverse-trainer-a2-0.reverse-trainer-nodes.team.svc" in main["command"]
    assert job["template"]["spec"]["subdomain"] == "reverse-trainer-nodes"
    meeting = found["Service", "reverse-trainer-nodes"]["spec"]
    assert (meeting["clusterIP"], meeting["publishNotReadyAddresses"]) == ("None", True)
    listening = found["Service", "reverse-trainer"]["spec"]
    assert listening["selector"]["batch.kubernetes.io/job-completion-index"] == "0"
    assert "readinessProbe" not in main


def test_a_queue_is_named_on_no_child() -> None:
    """Kueue would admit a labelled child alone; the run's own Workload stands for all."""
    for child in build(queueName="team-a").values():
        assert "kueue.x-k8s.io/queue-name" not in child["metadata"]["labels"]


@pytest.mark.proves("infrastructure.computeSize")
def test_compute_size_sets_the_cpus_and_workers_of_an_environment() -> None:
    found = {}
    for size in ("S", "M", "L"):
        pod = templates(build(infrastructure={"computeSize": size}))["reverse-env-0"]
        cpus = container_of(pod, "environment")["resources"]["requests"]["cpu"]
        found[size] = (int(cpus), told(pod)["workers"])
    assert found["S"] < found["M"] < found["L"]


@pytest.mark.proves("env.replicas", "eval.env.replicas")
def test_an_environment_has_its_replicas_and_a_service_that_lists_them() -> None:
    found = build(env=[{"id": "o/e", "replicas": 3}, {"id": "o/f"}], eval={"env": [{"id": "o/g", "replicas": 2}]})
    for name, replicas in (("reverse-env-0", 3), ("reverse-env-1", 1), ("reverse-eval-0", 2)):
        assert found["ReplicaSet", name]["spec"]["replicas"] == replicas
        service = found["Service", name]["spec"]
        assert service.get("clusterIP") == ("None" if replicas > 1 else None)
        assert service["publishNotReadyAddresses"]


@pytest.mark.proves("priorityClassName")
def test_priority_class_is_on_every_pod() -> None:
    for template in templates(build(priorityClassName="high")).values():
        assert template["spec"]["priorityClassName"] == "high"
    assert all("priorityClassName" not in template["spec"] for template in templates(build()).values())


def test_the_orchestrator_sees_changes_of_its_configuration_and_has_room_for_what_waits_for_s3() -> None:
    spec = templates(build())["reverse-orchestrator-a2"]["spec"]
    (main,) = spec["containers"]
    mounts = {mount["name"]: mount for mount in main["volumeMounts"]}
    assert mounts["config"] == {"name": "config", "mountPath": "/etc/rlrun", "readOnly": True}, "no subPath"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    given = variables(main)
    assert given["RLRUN_SPOOL"] == mounts["spool"]["mountPath"]
    limit = volumes["spool"]["emptyDir"]["sizeLimit"]
    assert limit.endswith("Mi")
    assert int(limit[:-2]) * 2**20 > int(given["RLRUN_SPOOL_BYTES"])
    assert spec["terminationGracePeriodSeconds"] > 40 + 10, "to write what is left"


def test_the_containers_of_each_role_are_those_that_count_as_the_operators() -> None:
    found: dict[str, set[str]] = {}
    trusting = SETTINGS.model_copy(update={"ca_bundle": "certificates"})
    for template in templates(build(settings=trusting)).values():
        names = {c["name"] for c in all_containers(template)}
        found.setdefault(template["metadata"]["labels"][ROLE_LABEL], set()).update(names)
    assert found == {str(role): set(names) for role, names in OWN_CONTAINERS.items()}


@pytest.mark.parametrize(
    ("family", "host", "url"),
    [("IPv4", [], "http://127.0.0.1:8000"), ("IPv6", ["--host", "::"], "http://[::1]:8000")],
)
def test_engines_listen_on_the_addresses_of_the_cluster(family: str, host: list[str], url: str) -> None:
    settings = SETTINGS.model_copy(update={"ip_family": family})
    engine, sidecar = templates(build(settings=settings))[IDENTITY.inference]["spec"]["containers"]
    assert [a for a in engine["args"] if a in ("--host", "::", "0.0.0.0")] == host
    assert {"name": "RLRUN_ENGINE_URL", "value": url} in sidecar["env"]


def test_services_of_a_run_have_one_family_of_addresses() -> None:
    for (kind, name), child in build().items():
        assert kind != "Service" or "ipFamilyPolicy" not in child["spec"], name


@pytest.mark.parametrize("wanted", [True, False])
def test_network_policies_are_made_for_nothing_if_the_platform_wants_none(wanted: bool) -> None:
    settings = changed(networkPolicies=wanted)
    model = RLModelSpec.model_validate(
        {"id": "a/b", "source": HUB, "seqLen": 512, "cache": {"storageClass": "shared", "size": "20Gi"}}
    )
    cache = cache_identity("team", model)
    assert cache is not None
    made = {
        "run": list(build(settings=settings).values()),
        "pool": list(build_pool({"networkPolicies": wanted}).values()),
        "cache": cache_objects(cache, settings, model, STORAGE_KEY),
    }
    assert {owner: any(one["kind"] == "NetworkPolicy" for one in objects) for owner, objects in made.items()} == {
        "run": wanted,
        "pool": wanted,
        "cache": wanted,
    }


def test_every_object_has_the_label_without_which_the_admission_policy_refuses_it() -> None:
    model = RLModelSpec.model_validate(
        {"id": "a/b", "source": HUB, "seqLen": 512, "cache": {"storageClass": "shared", "size": "20Gi"}}
    )
    cache = cache_identity("team", model)
    assert cache is not None
    run = list(build().values())
    made = [
        *run,
        *build({"trainer": {"gpus": 8, "nodes": 2}}).values(),
        *build_pool().values(),
        *cache_objects(cache, SETTINGS, model, STORAGE_KEY),
        workload(IDENTITY, "queue", run),
    ]
    assert {obj["kind"] for obj in made} >= {
        "ReplicaSet", "Job", "Deployment", "Service", "Secret", "ConfigMap", "ServiceAccount", "NetworkPolicy",
        "PersistentVolumeClaim", "Workload",
    }  # fmt: skip
    for obj in made:
        templates = [obj["spec"]["template"]] if obj["kind"] in ("ReplicaSet", "Job", "Deployment") else []
        for part in (obj, *templates):
            assert part["metadata"]["labels"][MANAGED_BY_LABEL] == FIELD_MANAGER, (obj["kind"], part["metadata"])
