"""Pods and containers whose logs are read."""

import pytest
from rlrun.kube.objects import Obj
from rlrun.kube.pod_logs import UnknownEnvironment, components_of, main_container, oldest_first, source

RUN: Obj = {
    "spec": {
        "env": [{"id": "acme/math", "name": "sums"}, {"id": "acme/math"}, {"id": "other/math"}],
        "eval": {"env": [{"id": "acme/math", "name": "sums"}]},
    }
}


def pod(name: str, *containers: str, default: str | None = None, created: str = "2026-01-01T00:00:00Z") -> Obj:
    annotations = {"kubectl.kubernetes.io/default-container": default} if default else {}
    return {
        "metadata": {"name": name, "annotations": annotations, "creationTimestamp": created},
        "spec": {"containers": [{"name": n} for n in containers]},
        "status": {"containerStatuses": [{"name": n, "restartCount": i} for i, n in enumerate(containers)]},
    }


def test_main_container() -> None:
    assert main_container(pod("p", "vllm", "sidecar")) == "vllm"
    assert main_container(pod("p", "vllm", "sidecar", default="sidecar")) == "sidecar"
    assert main_container(pod("p", "vllm", default="gone")) == "vllm"
    assert source(pod("p", "a", "b", default="b")).restarts == 1


@pytest.mark.parametrize("default", [None, "istio-proxy"])
def test_a_container_that_was_injected_is_not_the_main_one(default: str | None) -> None:
    meshed = pod("p", "istio-proxy", "trainer", default=default)
    meshed["metadata"]["labels"] = {"rlrun.dev/role": "trainer"}
    assert main_container(meshed) == "trainer"


def test_pods_are_ordered_by_age_and_then_by_name() -> None:
    pods = [pod("b", "x"), pod("c", "x", created="2025-01-01T00:00:00Z"), pod("a", "x")]
    assert [found["metadata"]["name"] for found in oldest_first(pods)] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("wanted", "components"),
    [
        ("sums", ["env-0", "eval-0"]),
        ("sums/1", ["eval-0"]),
        ("acme/math", ["env-0", "env-1", "eval-0"]),
        ("math/2", ["env-2"]),
    ],
)
def test_environments_are_selected_by_name_id_and_number(wanted: str, components: list[str]) -> None:
    assert components_of(RUN, wanted) == components


@pytest.mark.parametrize("wanted", ["none", "sums/2", "sums/²", f"sums/{'9' * 5000}", ""])
def test_an_unknown_environment_names_those_that_exist(wanted: str) -> None:
    with pytest.raises(UnknownEnvironment) as caught:
        components_of(RUN, wanted)
    assert caught.value.existing == ["acme/math", "other/math", "sums"]
