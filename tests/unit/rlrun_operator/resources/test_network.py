"""Connections that the NetworkPolicies of runs and serving pools allow, against a written table.

All roles of two runs in one namespace, of a run of the same name in another, a serving pool and others in the cluster
and outside it, each with each. The labels are those of the pods that the operator makes.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ValidationError
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.children import children
from rlrun_operator.resources.serving_pool import pool_children

from tests.support.built_children import BASE, CREDENTIALS, ORDER, POOL, STORAGE_KEY, Obj, resolved
from tests.support.network_policies import Endpoint, Outside, Pod, is_allowed

RUNS = {
    "first": RunIdentity("team", "first", "uid-1", 1, 1),
    "second": RunIdentity("team", "second", "uid-2", 1, 1),
    "foreign": RunIdentity("other", "first", "uid-3", 1, 1),
}
SEVERAL_TRAINERS = "second"
"""The run whose trainer has several pods."""
PORTS = (22, 53, 443, 8000, 8001, 8080, 8088, 8089, 8090, 29500)
CONNECTIONS = (*(("TCP", port) for port in PORTS), ("UDP", 53), ("UDP", 443))
ALL = frozenset(CONNECTIONS)


@dataclass(frozen=True)
class Place:
    """Something that connects, or is connected to."""

    name: str
    end: Endpoint
    role: str
    """Role in a run, or the name of what is not in one."""
    run: str = ""
    listens: frozenset[int] | None = None
    """Ports of its containers. None: any."""


def tcp(*ports: int) -> frozenset[tuple[str, int]]:
    return frozenset(("TCP", port) for port in ports)


WITHIN_A_RUN = {
    ("environment", "orchestrator"): tcp(8088),
    ("orchestrator", "environment"): tcp(8080),
    ("orchestrator", "trainer"): tcp(8080),
    ("orchestrator", "inference"): tcp(8000, 8001),
    ("inference", "trainer"): tcp(8080),
}
"""Open connections from a role to a role of the same run. All others between pods of runs are closed, but those among
trainers of several nodes, and those to ports of other processes than the pod's, where nothing listens."""
TO_RUNS = {
    (who, role): tcp(8090, *([8089] if role == "orchestrator" else []))
    for who in ("operator", "server")
    for role in ("orchestrator", "trainer", "inference", "environment")
}
"""Open connections from others to a role of any run."""
SERVER = Pod("rlrun-system", {"app.kubernetes.io/name": "rlrun", "app.kubernetes.io/component": "server"})
TO_POOL = {
    ("team", "environment"): frozenset(),
    ("team", ""): tcp(8000),
    ("rlrun-system", ""): tcp(8001),
    ("rlrun-system", "server"): tcp(8000, 8001),
}
"""Open connections to the pool of the namespace `team`, from a role (or from any) in a namespace."""
FROM_ENVIRONMENTS = {"dns": frozenset({("UDP", 53), ("TCP", 53)})}
"""Open connections from environments to what is not part of a run. Other pods may connect to all of it."""
MODEL_EGRESS = [{"to": [{"ipBlock": {"cidr": "52.216.0.0/16"}}], "ports": [{"port": 443, "protocol": "TCP"}]}]
HOLD_MODELS = ("trainer", "inference", "pool")
FROM_MODELS = {**FROM_ENVIRONMENTS, "server": tcp(8080), "S3": tcp(443)}
"""Open connections from pods that hold models, with `modelEgress`, to a role or a place outside of runs."""


def objects(settings: Obj | None = None) -> list[Obj]:
    full = OperatorSettings.model_validate({"s3": BASE, **(settings or {})})
    plan, several = resolved(), resolved({"trainer": {"nodes": 2}})
    storage = StorageAccess(full, STORAGE_KEY, POOL.namespace, POOL.name)
    made = [
        child
        for name, identity in RUNS.items()
        for child in children(identity, full, several if name == SEVERAL_TRAINERS else plan, STORAGE_KEY)
    ]
    return [*made, *pool_children(POOL, full, plan.model, ORDER, storage, CREDENTIALS)]


def policies(settings: Obj | None = None) -> list[Obj]:
    return [o for o in objects(settings) if o["kind"] == "NetworkPolicy"]


def places() -> list[Place]:
    found = [
        Place("dns", Pod("kube-system", {"k8s-app": "kube-dns"}), "dns"),
        Place("another pod of the system", Pod("kube-system", {"k8s-app": "metrics-server"}), "other"),
        Place("a pod of the team with the label of DNS", Pod("team", {"k8s-app": "kube-dns"}), "other"),
        Place("a pod of another team", Pod("other", {}), "other"),
        Place("operator", Pod("rlrun-system", {"app.kubernetes.io/name": "rlrun"}), "operator"),
        Place("rlrun-server", SERVER, "server"),
        Place("cloud metadata", Outside("169.254.169.254"), "outside"),
        Place("node-local DNS", Outside("169.254.20.10"), "outside"),
        Place("DNS of the internet", Outside("8.8.8.8"), "outside"),
        Place("S3", Outside("52.216.0.1"), "outside"),
    ]
    for made in objects():
        if made["kind"] not in ("ReplicaSet", "Deployment", "Job"):
            continue
        metadata, labels = made["metadata"], made["spec"]["template"]["metadata"]["labels"]
        run = next((name for name, r in RUNS.items() if r.uid == labels.get("rlrun.dev/run-uid")), "")
        role = labels["rlrun.dev/role"] if run else "pool"
        pod = Pod(metadata["namespace"], labels)
        containers = made["spec"]["template"]["spec"]["containers"]
        listens = frozenset(port["containerPort"] for container in containers for port in container.get("ports", ()))
        found.append(Place(f"{pod.namespace}/{metadata['name']}", pod, role, run, listens if run else None))
    return found


PLACES = places()
OF_PROCESSES = frozenset(port for place in PLACES for port in place.listens or () if place.role != "environment")
"""Ports of the processes of a run beside its environments."""


def expected(source: Place, destination: Place, is_limited: bool) -> frozenset[tuple[str, int]]:
    """The row of the table. Two pods of one workload are a place and itself. `is_limited`: with `modelEgress`."""
    if is_limited and source.role in HOLD_MODELS and not (destination.run and source.run == destination.run):
        return FROM_MODELS.get(destination.role, FROM_MODELS.get(destination.name, frozenset()))
    if destination.run:
        if source.run == destination.run == SEVERAL_TRAINERS and source.role == destination.role == "trainer":
            return ALL
        table = WITHIN_A_RUN if source.run == destination.run else {} if source.run else TO_RUNS
        return table.get((source.role, destination.role), frozenset())
    if destination.role == "pool":
        namespace = source.end.namespace if isinstance(source.end, Pod) else ""
        return TO_POOL.get((namespace, source.role), TO_POOL.get((namespace, ""), frozenset()))
    if source.role == "environment":
        return FROM_ENVIRONMENTS.get(destination.role, frozenset())
    return ALL


def is_of_another_process(destination: Place, port: int) -> bool:
    """Return whether the port belongs to another process of the run, so that nothing listens on it at this one."""
    is_process = destination.run != "" and destination.role != "environment"
    return is_process and port in OF_PROCESSES and port not in (destination.listens or ())


def differences(found: Sequence[Obj], is_limited: bool = False) -> Iterator[str]:
    """The connections that the policies allow and the table does not, or the other way round."""
    for source in PLACES:
        for destination in PLACES:
            wanted = expected(source, destination, is_limited)
            for protocol, port in CONNECTIONS:
                if is_of_another_process(destination, port):
                    continue
                is_open = is_allowed(found, source.end, destination.end, port, protocol)
                if is_open is not ((protocol, port) in wanted):
                    state = "open" if is_open else "closed"
                    yield f"{source.name} -> {destination.name} {protocol} {port} is {state}"


def test_all_roles_of_all_runs_are_in_the_table() -> None:
    roles = {"environment", "orchestrator", "trainer", "inference"}
    assert {(p.run, p.role) for p in PLACES if p.run} == {(run, role) for run in RUNS for role in roles}
    assert [p.name for p in PLACES if p.role == "pool"] == [f"team/{POOL.name}"]


def test_no_two_processes_of_a_run_have_the_same_port() -> None:
    """A rule for a port is a rule for one process: all but environments have a common policy."""
    processes = [place for place in PLACES if place.run == "first" and place.role != "environment"]
    ports = [port for place in processes for port in place.listens or ()]
    assert len(ports) == 5
    assert len(set(ports)) == len(ports)


def test_the_policies_allow_exactly_the_connections_of_the_table() -> None:
    assert list(differences(policies())) == []


def test_pods_with_models_reach_what_the_settings_name() -> None:
    assert list(differences(policies({"modelEgress": MODEL_EGRESS}), is_limited=True)) == []


def default_deny(namespace: str) -> Obj:
    """A policy of the platform team: what no other policy allows is closed, in both directions."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    return {"metadata": {"name": "default-deny", "namespace": namespace}, "spec": spec}


@pytest.mark.parametrize("limit", [None, MODEL_EGRESS], ids=["open", "limited"])
def test_runs_and_pools_are_whole_in_a_namespace_that_denies_by_default(limit: list[Obj] | None) -> None:
    settings = {} if limit is None else {"modelEgress": limit}
    denied = [*policies(settings), *(default_deny(namespace) for namespace in ("team", "other"))]
    changed = differences(denied, is_limited=limit is not None)
    assert [found for found in changed if "a pod of " not in found] == [], "pods that no run has are the namespace's"


def test_pods_with_models_reach_the_server_at_the_port_of_its_url() -> None:
    settings = {"modelEgress": [], "storageServer": "https://rlrun-server.rlrun-system.svc:8443"}
    found = [p for p in policies(settings) if "Egress" in p["spec"]["policyTypes"]]
    for source in [place for place in PLACES if place.role in HOLD_MODELS]:
        server = next(place for place in PLACES if place.role == "server")
        assert [port for port in (8080, 8443) if is_allowed(found, source.end, server.end, port)] == [8443]


@pytest.mark.parametrize("rule", [{}, {"to": []}, {"ports": [{"port": 443}]}])
def test_a_rule_for_all_destinations_is_refused(rule: Obj) -> None:
    with pytest.raises(ValidationError, match="modelEgress"):
        policies({"modelEgress": [rule]})


def test_processes_need_no_policy_of_user_code_to_be_closed_to_it() -> None:
    found = copy.deepcopy(policies())
    for policy in found:
        policy["spec"].pop("egress", None)
        policy["spec"]["policyTypes"] = ["Ingress"]
    of_runs = [name for name in differences(found) if any(f"-> {run.namespace}/" in name for run in RUNS.values())]
    to_processes = [name for name in of_runs if "-> team/" + POOL.name not in name]
    assert to_processes == []


def test_dns_servers_of_the_settings_are_reached_and_no_others() -> None:
    dns = {
        "namespaceLabels": {"kubernetes.io/metadata.name": "kube-system"},
        "podLabels": {"k8s-app": "metrics-server"},
        "cidrs": ["169.254.20.10/32"],
    }
    opened = {name: state for name, state in map(_split, differences(policies({"dns": dns}))) if "team/first" in name}
    for environment in ("team/first-env-0", "team/first-env-1", "team/first-eval-0"):
        for protocol in ("TCP", "UDP"):
            assert opened.pop(f"{environment} -> another pod of the system {protocol} 53") == "open"
            assert opened.pop(f"{environment} -> node-local DNS {protocol} 53") == "open"
            assert opened.pop(f"{environment} -> dns {protocol} 53") == "closed"
    assert opened == {}


def _split(difference: str) -> tuple[str, str]:
    connection, _, state = difference.rpartition(" is ")
    return connection, state


Plant = Callable[[dict[str, Obj]], Any]
ENVIRONMENT, PROCESSES, TRAINERS = "first-user-code", "first-processes", "second-trainer"


def _dns_peer(found: dict[str, Obj]) -> Obj:
    peer: Obj = found[ENVIRONMENT]["spec"]["egress"][1]["to"][0]
    return peer


def _admit_namespace(found: dict[str, Obj]) -> None:
    found["all"] = {
        "metadata": {"name": "all", "namespace": "team"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]},
    }


PLANTED: dict[str, tuple[Plant, str]] = {
    "port 53 of any address": (
        lambda p: p[ENVIRONMENT]["spec"]["egress"][1].pop("to"),
        "team/first-env-0 -> DNS of the internet UDP 53 is open",
    ),
    "DNS in any namespace": (
        lambda p: _dns_peer(p).update(namespaceSelector={}),
        "team/first-env-0 -> a pod of the team with the label of DNS TCP 53 is open",
    ),
    "DNS in the own namespace": (
        lambda p: _dns_peer(p).pop("namespaceSelector"),
        "team/first-env-0 -> dns UDP 53 is closed",
    ),
    "all pods of the system": (
        lambda p: _dns_peer(p).pop("podSelector"),
        "team/first-env-0 -> another pod of the system UDP 53 is open",
    ),
    "no limit on departures": (
        lambda p: p[ENVIRONMENT]["spec"].update(policyTypes=["Ingress"]),
        "team/first-env-0 -> cloud metadata TCP 443 is open",
    ),
    "another port of the orchestrator": (
        lambda p: p[ENVIRONMENT]["spec"]["egress"][0].pop("ports") and p[PROCESSES]["spec"]["ingress"][0].pop("ports"),
        "team/first-env-0 -> team/first-orchestrator-a1 TCP 8089 is open",
    ),
    "a rule without peers": (
        lambda p: p[PROCESSES]["spec"]["ingress"].append({}),
        "operator -> team/first-orchestrator-a1 TCP 8088 is open",
    ),
    "engines of all runs at the trainer": (
        lambda p: p[PROCESSES]["spec"]["ingress"][3]["from"][0]["podSelector"]["matchLabels"].pop("rlrun.dev/run"),
        "team/second-inference -> team/first-trainer TCP 8080 is open",
    ),
    "a role without a policy": (
        lambda p: p[PROCESSES]["spec"]["podSelector"]["matchExpressions"][0]["values"].remove("trainer"),
        "a pod of another team -> team/first-trainer TCP 8080 is open",
    ),
    "pods of all runs": (
        lambda p: p[PROCESSES]["spec"]["podSelector"]["matchLabels"].pop("rlrun.dev/run"),
        "team/first-inference -> team/second-trainer-a1 TCP 8080 is open",
    ),
    "all pods of the namespace": (
        lambda p: p[PROCESSES]["spec"]["ingress"][2]["from"].append({"podSelector": {}}),
        "team/second-inference -> team/first-trainer TCP 8080 is open",
    ),
    "several trainers without a policy": (
        lambda p: p.pop(TRAINERS),
        "team/second-trainer-a1 -> team/second-trainer-a1 TCP 29500 is closed",
    ),
    "one more policy": (_admit_namespace, "team/second-trainer-a1 -> team/first-inference TCP 8001 is open"),
}
"""Wrong policies, and one of the connections that they open or close."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_policy_is_noticed(name: str) -> None:
    plant, difference = PLANTED[name]
    found = {p["metadata"]["name"]: p for p in copy.deepcopy(policies()) if p["metadata"]["namespace"] == "team"}
    others = [p for p in policies() if p["metadata"]["namespace"] != "team"]
    plant(found)
    assert difference in list(differences([*found.values(), *others]))
