"""Webhooks and configurations of Kubeflow Trainer and JobSet on this machine."""

import copy

from local_cluster.control_plane.kubeflow_trainer import jobset_configuration, served_here, trainer_configuration
from local_cluster.host.network import Ports


def hook(resource: str) -> dict[str, object]:
    service = {"name": "webhook-service", "namespace": "system", "path": f"/mutate-{resource}"}
    rules = [{"resources": [resource], "operations": ["CREATE"]}]
    return {"name": resource, "clientConfig": {"service": service}, "rules": rules, "failurePolicy": "Fail"}


CONFIGURATION = {
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "mutating-webhook-configuration"},
    "webhooks": [hook("jobsets"), hook("pods")],
}


def test_webhooks_call_a_port_of_this_machine_and_only_for_their_own_pods() -> None:
    before = copy.deepcopy(CONFIGURATION)
    found = served_here(CONFIGURATION, "jobset", 1234, "bundle")
    jobsets, pods = found["webhooks"]
    assert jobsets["clientConfig"] == {"url": "https://127.0.0.1:1234/mutate-jobsets", "caBundle": "bundle"}
    assert "objectSelector" not in jobsets
    assert pods["objectSelector"]["matchExpressions"][0]["key"] == "jobset.sigs.k8s.io/jobset-name"
    assert before == CONFIGURATION


def test_configurations_of_both_have_different_names() -> None:
    names = {served_here(CONFIGURATION, name, 1, "")["metadata"]["name"] for name in ("jobset", "kubeflow-trainer")}
    assert len(names) == 2


def test_both_serve_on_loopback_and_make_no_certificates() -> None:
    ports = Ports(api=1, etcd=2)
    for found, key in (
        (jobset_configuration(ports), "internalCertManagement"),
        (trainer_configuration(ports), "certManagement"),
    ):
        assert found[key] == {"enable": False}
        assert found["webhook"] == {"host": "127.0.0.1", "port": 1}
        assert found["health"] == {"healthProbeBindAddress": "127.0.0.1:2"}
