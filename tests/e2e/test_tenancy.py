"""Two runs at once, in two namespaces, don't disturb one another."""

from collections.abc import Callable

import pytest
from rlrun.artifacts.layout import RunLayout

from demo.install import BUCKET
from demo.kubectl import wait_for
from demo.run_metrics import mean_of, read_metrics
from demo.watch import follow
from tests.e2e.conftest import Platform

STEPS = 8


def test_two_runs_of_one_name_in_two_namespaces(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    namespaces = [fresh_namespace("team-a"), fresh_namespace("team-b")]
    for namespace in namespaces:
        platform.kubectl.apply(platform.run_object("same-name", namespace, maxSteps=STEPS))
    both_running: list[bool] = []

    def look(_: object) -> None:
        phases = [platform.kubectl.get("rlrun", "same-name", ns) or {} for ns in namespaces]
        both_running.append(all(p.get("status", {}).get("phase") == "Running" for p in phases))

    runs = [follow(platform.kubectl, "same-name", ns, seconds=600, each=look) for ns in namespaces]

    assert any(both_running), "the runs went one after the other: that shows nothing"
    for namespace, run in zip(namespaces, runs, strict=True):
        layout = RunLayout.of(BUCKET, "", namespace, run["metadata"]["uid"])
        lines = read_metrics(platform.s3.store(), layout)
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        assert mean_of(lines, "mismatch_kl/all/mean") <= 0.01, "the engines served another run's adapter"
        uids = {o["spec"]["runUid"] for o in platform.kubectl.list("rladapters", namespace)}
        assert uids == {run["metadata"]["uid"]}


@pytest.mark.proves("artifactPolicy")
def test_deleting_a_run_removes_its_children_and_by_policy_its_artifacts(
    platform: Platform, fresh_namespace: Callable[[str], str]
) -> None:
    namespace = fresh_namespace("deletion")
    kubectl, store = platform.kubectl, platform.s3.store()
    roots = {}
    for policy in ("Retain", "Delete"):
        name = f"policy-{policy.lower()}"
        kubectl.apply(platform.run_object(name, namespace, maxSteps=1, artifactPolicy=policy))
    for policy in ("Retain", "Delete"):
        run = follow(kubectl, f"policy-{policy.lower()}", namespace, seconds=400)
        roots[policy] = RunLayout.of(BUCKET, "", namespace, run["metadata"]["uid"]).root
        assert store.list_folders(roots[policy] / "checkpoints")

    kubectl("delete", "rlrun", "--all", "-n", namespace, "--wait=true", timeout=120)

    def children() -> list[str]:
        kinds = "pods,jobs,deployments,services,configmaps,networkpolicies,secrets"
        return [o["metadata"]["name"] for o in kubectl.list(kinds, namespace, "rlrun.dev/run")]

    wait_for("the children's end", lambda: not children(), 90)
    assert store.list_folders(roots["Retain"] / "checkpoints")
    wait_for("the end of the deleted run's artifacts", lambda: not store.list_files(roots["Delete"]), 60)
