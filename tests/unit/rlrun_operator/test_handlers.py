import kopf
import pytest
from kopf._cogs.structs.references import Resource
from kubernetes.aio import client
from rlrun_operator.handlers import CHILDREN, configure_kopf, connection, readers, run_key
from rlrun_operator.planning.plan.observation import RunKey


@pytest.mark.parametrize("child", CHILDREN, ids=lambda c: c[2])
def test_children_are_filtered_by_the_server(child: tuple[str, str, str]) -> None:
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    resource = Resource(*child, kind="X", singular="x", namespaced=True, preferred=True)
    assert settings.watching.label_selectors.collect(resource) == ["app.kubernetes.io/managed-by=rlrun-operator"]


def test_foreign_kinds_are_not_filtered() -> None:
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    resource = Resource("rlrun.dev", "v1alpha1", "rlruns", kind="RLRun", singular="rlrun", namespaced=True)
    assert settings.watching.label_selectors.collect(resource) == []


def test_kopf_uses_the_service_account_token_of_the_configuration() -> None:
    configuration = client.Configuration()
    configuration.host = "https://10.0.0.1:443"
    configuration.api_key["BearerToken"] = "bearer abc"
    found = connection(configuration)
    assert found.server == "https://10.0.0.1:443"
    assert found.as_http_headers() == {"Authorization": "Bearer abc"}
    assert found.expiration is not None


def test_kopf_uses_the_client_certificate_of_the_configuration() -> None:
    configuration = client.Configuration()
    configuration.host = "https://10.0.0.1:443"
    configuration.cert_file, configuration.key_file = "/c", "/k"
    found = connection(configuration)
    assert (found.certificate_path, found.private_key_path) == ("/c", "/k")
    assert found.as_http_headers() == {}


def test_labelled_objects_lead_to_their_run() -> None:
    labelled = {"metadata": {"namespace": "n", "labels": {"rlrun.dev/run": "r"}}}
    assert run_key(labelled) == RunKey("n", "r")
    assert run_key({"metadata": {"namespace": "n"}}) is None


@pytest.mark.parametrize(
    ("spec", "namespaces"),
    [({}, {"n"}), ({"sharedWith": ["m", "o"]}, {"n", "m", "o"}), ({"sharedWith": None}, {"n"})],
    ids=["alone", "shared", "null"],
)
def test_a_changed_artifact_concerns_its_namespace_and_those_it_is_shared_with(
    spec: dict[str, object], namespaces: set[str]
) -> None:
    assert readers({"metadata": {"namespace": "n"}, "spec": spec}) == namespaces
