"""Engines ask for a token: what their pods have for it, and what an RLModel cannot change."""

import base64
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rlrun_engine_access.middleware as middleware
from pydantic import ValidationError
from rlrun.protocol import engine_proof
from rlrun.protocol.access import (
    OPEN_PATHS_VARIABLE,
    POOL_API_KEY_SECRET_VARIABLE,
    POOL_API_KEY_VARIABLE,
    TOKEN_VARIABLE,
    USER_API_KEY,
    USER_PATHS_VARIABLE,
)
from rlrun_operator.resources.access.engine_access import MIDDLEWARE

from tests.support.built_children import CREDENTIALS, Obj, build, build_pool, container_of, containers
from tests.support.built_children import variables as of_container


def pod_of_run(model: Obj | None = None) -> Obj:
    made: Obj = build(model)["ReplicaSet", "reverse-inference"]["spec"]["template"]
    return made


def pod_of_pool(**model: Any) -> Obj:
    made: Obj = build_pool(**model)["Deployment"]["spec"]["template"]
    return made


def variables(pod: Obj, name: str = "vllm") -> dict[str, Any]:
    return of_container(container_of(pod, name))


@pytest.mark.parametrize("pod", [pod_of_run(), pod_of_pool()], ids=["run", "pool"])
def test_engines_fetch_media_from_no_host_that_can_exist(pod: Obj) -> None:
    args = container_of(pod, "vllm")["args"]
    following = args[args.index("--allowed-media-domains") + 1 :]
    domains = list(itertools.takewhile(lambda argument: not argument.startswith("--"), following))
    assert [domain.endswith(".invalid") for domain in domains] == [True]


@pytest.mark.parametrize("pod", [pod_of_run(), pod_of_pool()], ids=["run", "pool"])
def test_the_engine_loads_the_middleware_that_an_init_container_brings(pod: Obj) -> None:
    args = container_of(pod, "vllm")["args"]
    assert args[args.index("--middleware") + 1] == MIDDLEWARE
    module, _, name = MIDDLEWARE.rpartition(".")
    assert (module, name) == (middleware.__name__, middleware.EngineAccess.__name__)
    first = containers(pod)[0]
    assert first["command"] == ["python", "-m", "rlrun_engine_access", "/engine-access"]
    assert {"name": "engine-access", "mountPath": "/engine-access"} in first["volumeMounts"]
    mounted = {"name": "engine-access", "mountPath": "/engine-access", "readOnly": True}
    assert mounted in container_of(pod, "vllm")["volumeMounts"]
    assert variables(pod)["PYTHONPATH"] == "/engine-access"
    assert (TOKEN_VARIABLE, OPEN_PATHS_VARIABLE) == (middleware.TOKEN_VARIABLE, middleware.OPEN_PATHS_VARIABLE)
    assert (POOL_API_KEY_VARIABLE, USER_PATHS_VARIABLE) == (
        middleware.POOL_API_KEY_VARIABLE,
        middleware.USER_PATHS_VARIABLE,
    )
    assert POOL_API_KEY_SECRET_VARIABLE == middleware.POOL_API_KEY_SECRET_VARIABLE
    assert USER_API_KEY in Path(middleware.__file__).read_text(), "the message names it"


def test_a_claim_with_the_model_needs_no_fetcher_but_the_middleware() -> None:
    for pod in (pod_of_run({"source": "pvc://claim/a"}), pod_of_pool(source="pvc://claim/a")):
        names = [c["name"] for c in containers(pod)]
        assert names == ["engine-access", "gpu-check", "vllm", "sidecar"]


def test_only_probes_are_open_in_the_engine_of_a_run() -> None:
    found = variables(pod_of_run())
    assert found["RLRUN_OPEN_PATHS"] == "/health,/metrics"
    token = {"secretKeyRef": {"name": "reverse-rlrun-token", "key": "RLRUN_TOKEN", "optional": True}}
    assert (found["RLRUN_TOKEN"], found["VLLM_API_KEY"]) == (token, token)


def test_users_reach_the_openai_paths_of_a_pool_with_their_key_and_no_others() -> None:
    found = variables(pod_of_pool())
    assert found["RLRUN_OPEN_PATHS"] == "/health,/metrics"
    assert set(found["RLRUN_USER_PATHS"].split(",")) == {
        "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses",
    }  # fmt: skip
    secret = build_pool()["Secret of users"]
    name = secret["metadata"]["name"]
    assert base64.b64decode(secret["data"]["OPENAI_API_KEY"]).decode() == CREDENTIALS.api_key
    assert list(secret["data"]) == ["OPENAI_API_KEY"], "who reads it cannot load adapters"
    assert found["RLRUN_POOL_API_KEY"] == {"secretKeyRef": {"name": name, "key": "OPENAI_API_KEY"}}
    assert found["RLRUN_POOL_API_KEY_SECRET"] == name
    assert "VLLM_API_KEY" not in found, "vLLM takes one key, and users must not have that of the sidecar"
    assert "RLRUN_POOL_API_KEY" not in variables(pod_of_run())


def test_rlrun_server_has_a_key_of_its_own_for_the_paths_of_users() -> None:
    secret = build_pool()["Secret"]
    assert base64.b64decode(secret["data"]["RLRUN_POOL_SERVER_KEY"]).decode() == CREDENTIALS.server_key
    reference = {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "RLRUN_POOL_SERVER_KEY"}}
    assert variables(pod_of_pool())["RLRUN_POOL_SERVER_KEY"] == reference
    assert "RLRUN_POOL_SERVER_KEY" not in variables(pod_of_pool(), "sidecar")
    assert "RLRUN_POOL_SERVER_KEY" not in variables(pod_of_run())
    assert middleware.POOL_SERVER_KEY_VARIABLE == engine_proof.POOL_SERVER_KEY_VARIABLE
    renewed = replace(CREDENTIALS, server_key="another")
    first, other = (build_pool(credentials=c)["Deployment"]["spec"]["template"] for c in (CREDENTIALS, renewed))
    assert first["metadata"]["annotations"] != other["metadata"]["annotations"]


def test_engine_and_sidecar_of_a_pool_have_its_token_and_do_not_start_without() -> None:
    found = build_pool()
    secret = found["Secret"]
    assert base64.b64decode(secret["data"]["RLRUN_TOKEN"]).decode() == CREDENTIALS.token
    token = {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "RLRUN_TOKEN"}}
    for name in ("vllm", "sidecar"):
        found = variables(pod_of_pool(), name)
        assert {k: v for k, v in found["RLRUN_TOKEN"]["secretKeyRef"].items() if v} == token["secretKeyRef"]


def test_pods_of_a_pool_with_another_token_are_replaced() -> None:
    renewed = replace(CREDENTIALS, token="another")
    first, same, other = (build_pool(credentials=c)["Deployment"] for c in (CREDENTIALS, CREDENTIALS, renewed))
    assert first == same
    assert first["spec"]["template"]["metadata"]["annotations"] != other["spec"]["template"]["metadata"]["annotations"]
    assert CREDENTIALS.token not in str(first)


@pytest.mark.parametrize("build", [pod_of_run, lambda model: pod_of_pool(**model)], ids=["run", "pool"])
def test_an_rlmodel_can_neither_change_the_token_nor_leave_the_middleware_out(build: Any) -> None:
    set_by_model = {
        "RLRUN_TOKEN": "known",
        "RLRUN_OPEN_PATHS": "/tokenize",
        "RLRUN_USER_PATHS": "/tokenize",
        "RLRUN_POOL_API_KEY": "known",
        "RLRUN_POOL_SERVER_KEY": "known",
        "PYTHONPATH": "/opt/plugins",
        "VLLM_USE_RUST_FRONTEND": "1",
    }
    env = [{"name": name, "value": value} for name, value in set_by_model.items()]
    pod = build({"inference": {"env": env}})
    found = variables(pod)
    owned = [name for name in set_by_model if name.startswith("RLRUN_")]
    assert [found.get(name) for name in owned] == [variables(build({})).get(name) for name in owned]
    assert {"RLRUN_TOKEN", "RLRUN_OPEN_PATHS"} <= found.keys()
    assert (found["PYTHONPATH"], found["VLLM_USE_RUST_FRONTEND"]) == ("/engine-access:/opt/plugins", "0")
    names = [e["name"] for e in container_of(pod, "vllm")["env"]]
    assert len(names) == len(set(names))
    for flag in ("--allowed-media-domains", "--allowed-local-media-path"):
        with pytest.raises(ValidationError, match=flag):
            build({"inference": {"extraArgs": [flag, "/"]}})
    with pytest.raises(ValidationError, match="--middleware"):
        build({"inference": {"extraArgs": ["--middleware", "mine.Open"]}})
