"""Objects of a run that a real API server refuses, and names that are taken."""

from tests.apiserver.rlrun_operator.conftest import Bench

APPS = "apis/apps/v1"
DEPLOYMENTS = "count/deployments.apps"


def set_quota(bench: Bench, deployments: int) -> None:
    """Writes the status as well, which a controller does in a whole cluster."""
    path = f"/api/v1/namespaces/{bench.namespace}/resourcequotas"
    hard = {DEPLOYMENTS: str(deployments)}
    if bench.get("api/v1", "resourcequotas", "small") is None:
        bench.call("POST", path, {"metadata": {"name": "small"}, "spec": {"hard": hard}})
    used = {DEPLOYMENTS: str(len(bench.items(APPS, "deployments")))}
    patch = "application/merge-patch+json"
    bench.call("PATCH", f"{path}/small", {"spec": {"hard": hard}}, patch)
    bench.call("PATCH", f"{path}/small/status", {"status": {"hard": hard, "used": used}}, patch)


def test_a_quota_that_refuses_a_deployment_becomes_a_condition_and_then_the_run_goes_on(bench: Bench) -> None:
    set_quota(bench, 1)
    bench.create_model()
    bench.create_run()
    bench.wait("the refusal", lambda: bench.condition("ChildrenApplied").get("reason") == "QuotaExceeded")
    refused = bench.condition("ChildrenApplied")
    assert refused["status"] == "False"
    assert "exceeded quota: small" in refused["message"]
    assert f"limited: {DEPLOYMENTS}=1" in refused["message"]
    status = bench.run()["status"]
    assert (status["phase"], status["reason"], status["attempt"]) == ("Pending", "QuotaExceeded", 1)
    assert len(bench.items(APPS, "deployments")) == 1
    bench.wait("its Event", lambda: "QuotaExceeded" in {e["reason"] for e in bench.items("api/v1", "events")})

    set_quota(bench, 9)
    bench.wait("the other Deployments", lambda: len(bench.items(APPS, "deployments")) == 3)
    bench.wait("the end of the refusal", lambda: bench.condition("ChildrenApplied")["status"] == "True")


def test_a_service_account_of_another_owner_is_not_taken_over(bench: Bench) -> None:
    accounts = f"/api/v1/namespaces/{bench.namespace}/serviceaccounts"
    bench.call("POST", accounts, {"metadata": {"name": "reverse"}, "automountServiceAccountToken": True})
    before = bench.get("api/v1", "serviceaccounts", "reverse")
    bench.create_model()
    bench.create_run()
    bench.wait("the refusal", lambda: bench.condition("ChildrenApplied").get("reason") == "NameTaken")
    assert bench.get("api/v1", "serviceaccounts", "reverse") == before
    assert bench.items(APPS, "deployments") == []
    bench.call("DELETE", f"{accounts}/reverse")
    bench.wait("the Deployments", lambda: len(bench.items(APPS, "deployments")) == 3)
