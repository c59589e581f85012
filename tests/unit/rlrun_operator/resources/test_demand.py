"""What a run's pods request, as the scheduler counts it."""

from collections import Counter
from typing import Any

from rlrun.api.model import RLModelSpec
from rlrun.kube.pods import component_of
from rlrun_operator.kueue.workload import pod_count
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.demand import pod_requests, workloads
from rlrun_operator.resources.platform import resolve

from tests.support.cluster_objects import model_object
from tests.support.operator_world import SETTINGS
from tests.support.run_states import run_spec

GPU = "nvidia.com/gpu"
IDENTITY = RunIdentity("team", "reverse", "uid-1", 1, 1)


def demand(model: dict[str, Any], **spec: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Pods by component, and what all of them request."""
    parsed = RLModelSpec.model_validate(model_object(**model)["spec"], by_alias=True, by_name=False)
    resolved = resolve(IDENTITY, SETTINGS, run_spec(**spec), parsed, None)
    found = workloads(IDENTITY, SETTINGS, resolved)
    total: Counter[str] = Counter()
    for obj in found:
        requests = pod_requests(obj["spec"]["template"]["spec"])
        total.update({name: pod_count(obj) * millis for name, millis in requests.items()})
    return {component_of(obj): pod_count(obj) for obj in found}, dict(total)


def test_all_replicas_nodes_and_environments_count() -> None:
    model = {"trainer": {"gpus": 8, "nodes": 2}, "inference": {"gpus": 4, "replicas": 3}}
    environments = [{"id": "rlrun/a", "egress": ["api.example.com"]}, {"id": "rlrun/b", "replicas": 3}]
    evaluation = {"env": [{"id": "rlrun/c", "replicas": 2}], "interval": 5}
    counts, total = demand(model, env=environments, eval=evaluation, infrastructure={"computeSize": "S"})
    assert counts == {"trainer": 2, "inference": 3, "env-0": 1, "env-1": 3, "eval-0": 2, "orchestrator": 1}
    assert total[GPU] == (2 * 8 + 3 * 4) * 1000
    # 2 for each GPU, where the RLModel names none: what a ResourceQuota counts, too.
    engines, trainers = 3 * (4 * 2000 + 50), 2 * 8 * 2000
    holds = sum(counts.values())  # a thousandth of a CPU each
    assert total["cpu"] == 6 * 1000 + 500 + engines + trainers + holds
    assert total["memory"] >= (2 * 8 + 3 * 4) * 8 * 2**30 * 1000


def test_a_pod_requests_what_its_containers_need_together_or_one_init_container_more() -> None:
    def container(**resources: Any) -> dict[str, Any]:
        return {"resources": resources}

    spec = {
        "containers": [
            container(requests={"cpu": "1"}, limits={"cpu": "2", GPU: "4"}),
            container(limits={"cpu": "500m"}),
            {},
        ],
        "initContainers": [container(requests={"cpu": "1", "memory": "1Gi"}), container(requests={"cpu": "3"})],
    }
    assert pod_requests(spec) == {"cpu": 3000, GPU: 4000, "memory": 2**30 * 1000}


def test_a_native_sidecar_runs_beside_all_containers_that_follow_it() -> None:
    def container(cpu: str, **fields: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **fields}

    sidecar, init = container("2", restartPolicy="Always"), container("5")
    assert pod_requests({"containers": [container("1")], "initContainers": [sidecar]}) == {"cpu": 3000}
    assert pod_requests({"containers": [container("1")], "initContainers": [sidecar, init]}) == {"cpu": 7000}
    assert pod_requests({"containers": [container("1")], "initContainers": [init, sidecar]}) == {"cpu": 5000}
