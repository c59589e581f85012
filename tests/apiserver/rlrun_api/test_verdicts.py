"""The API server's verdict on the fixture specs: the same as pydantic's, naming the same field."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from rlrun.constants import GROUP, USER_ANNOTATION, VERSION
from rlrun.kube.errors import ApiError

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.rlrun_api.server import BY_NAME, Object, Server
from tests.fixtures.specs import cases
from tests.support.source_tree import ROOT


def _refusal(error: client.ApiException, field: str) -> str:
    """The part of a refusal that names the field; the whole message when none does."""
    assert error.status in (400, 403, 422), error.body
    refusal = ApiError.from_response(error.status, error.body)
    if any(cases.names_field(cause.get("field", ""), field) for cause in refusal.details.get("causes", [])):
        return field
    # Unknown fields are not causes of their own.
    return field if f'unknown field "{field}"' in refusal.message else refusal.message


@pytest.mark.parametrize("case", cases.valid(), ids=lambda c: c.name)
def test_valid_specs_are_accepted_and_get_defaults_outside_of_lists(case: cases.Case, server: Server) -> None:
    stored = server.send("POST", case.object["kind"], case.object)
    model = BY_NAME[case.object["kind"]].model
    complete = model.from_object(case.object).spec.to_json_dict()
    assert _comparable(stored["spec"]) == _comparable(_with_lists(complete, case.object["spec"]))
    assert model.from_object(stored).spec == model.from_object(case.object).spec


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/**/*.yaml")), ids=lambda file: file.stem)
def test_shipped_objects_are_stored_as_tools_that_compare_them_predict(file: Path, server: Server) -> None:
    """Argo CD predicts the result of applying a custom resource by a JSON merge patch of the stored object."""
    for written in filter(None, yaml.safe_load_all(file.read_text())):
        if written["kind"] in BY_NAME:
            # Another test may have the model of this name.
            written["metadata"]["name"] = f"{written['metadata']['name'][:30]}-{uuid.uuid4().hex[:6]}"
            stored = server.send("POST", written["kind"], written)["spec"]
            assert _comparable(stored) == _comparable(_with_lists(stored, written["spec"]))


def _with_lists(complete: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """Return a spec with defaults, in which lists of sections are those that were written, without nulls."""
    result = dict(complete)
    for key, value in written.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _with_lists(result[key], value)
        elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
            result[key] = [{k: v for k, v in entry.items() if v is not None} for entry in value]
    return result


@pytest.mark.parametrize("case", cases.invalid(), ids=lambda c: c.name)
def test_invalid_specs_are_refused_and_the_field_named(case: cases.Case, server: Server) -> None:
    with pytest.raises(client.ApiException) as caught:
        server.send("POST", case.object["kind"], case.object)
    assert _refusal(caught.value, case.field) == case.field


def test_all_violated_rules_of_a_run_are_reported_together(server: Server) -> None:
    run: Object = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "RLRun",
        "metadata": {"name": "wrong-" + "x" * 40},
        "spec": {
            "model": "acme/tiny",
            "batchSize": 7,
            "env": [{"id": "acme/first@1", "version": "1"}, {"id": "acme/second@1", "version": "2"}],
            "eval": {"env": [{"id": "acme/third", "numExamples": 0}]},
            "checkpoints": {"keepCloud": 0},
        },
    }
    assert _violations(server, "POST", run) == {
        "metadata.name": "metadata.name must have at most 40 characters: lower-case letters, digits and -, beginning "
        "with a letter and ending with a letter or digit",
        "spec.batchSize": "batchSize must be a multiple of rolloutsPerExample: every batch consists of whole groups",
        "spec.env[1].id": "id and version name different versions: remove one of them",
        "spec.env[1].version": "version and id name different versions: remove one of them",
        "spec.eval.env[0].numExamples": "numExamples must be -1 (all) or at least 1",
        "spec.checkpoints.keepCloud": "keepCloud must be -1 (all) or at least 1",
    }


def test_all_forbidden_changes_of_a_run_are_reported_together(server: Server) -> None:
    spec = {"model": "acme/tiny", "env": [{"id": "acme/reverse-text"}]}
    run = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "RLRun", "metadata": {}, "spec": spec}
    with _created(cases.Update("run", run, {}), server) as name:
        change = {"spec": {"seed": 5, "queueName": "other", "maxSteps": 1, "checkpoints": {"interval": 1}}}
        found = _violations(server, "PATCH", change, name)
    frozen = "is immutable: create a new object instead"
    assert found == {
        "spec.seed": f"seed {frozen}",
        "spec.queueName": f"queueName {frozen}",
        "spec.maxSteps": "maxSteps cannot be lowered: set stop to end the run early",
        "spec.checkpoints.interval": f"interval {frozen}",
    }


def test_a_run_names_only_its_creator_or_whom_the_client_may_impersonate(
    api: client.ApiClient, control_plane: ControlPlane, namespace: str
) -> None:
    """Usage is counted by this name."""
    rules = [{"apiGroups": [GROUP], "resources": ["rlruns"], "verbs": ["create", "patch"]}]
    rbac = client.RbacAuthorizationV1Api(api)
    rbac.create_namespaced_role(namespace, {"metadata": {"name": "runs"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "runs"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}
    binding = {"metadata": {"name": "runs"}, "roleRef": reference, "subjects": [subject]}
    rbac.create_namespaced_role_binding(namespace, binding)
    as_ann = config.new_client_from_config(str(control_plane.kubeconfig))
    as_ann.set_default_header("Impersonate-User", "ann")
    administrator, ann = Server(api, namespace), Server(as_ann, namespace)

    def run(user: str) -> Object:
        metadata = {"name": "named", "annotations": {USER_ANNOTATION: user}}
        spec = {"model": "acme/tiny", "env": [{"id": "acme/reverse-text"}]}
        return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "RLRun", "metadata": metadata, "spec": spec}

    administrator.send("POST", "RLRun", run("somebody"))
    for _ in range(600):
        if may_create(ann, run("ann")):
            break
        time.sleep(0.1)  # The API server learns of the role by a watch.
    with pytest.raises(client.ApiException, match=f"{USER_ANNOTATION} must be the user who creates the run"):
        ann.send("POST", "RLRun", run("somebody"))
    ann.send("POST", "RLRun", run("ann"), dry_run=False)
    with pytest.raises(client.ApiException, match=USER_ANNOTATION):
        ann.send("PATCH", "RLRun", {"metadata": {"annotations": {USER_ANNOTATION: "somebody"}}}, "named")
    ann.send("PATCH", "RLRun", {"spec": {"stop": True}}, "named", dry_run=False)
    ann.send("PATCH", "RLRun", {"metadata": {"annotations": {USER_ANNOTATION: None}}}, "named")


def may_create(server: Server, run: Object) -> bool:
    try:
        server.send("POST", "RLRun", run)
    except client.ApiException as error:
        if error.status != 403:
            raise
        return False
    return True


def _violations(server: Server, method: str, body: Object, name: str = "") -> dict[str, str]:
    """The messages of a refused run by field, as command line and rlrun-server read them."""
    with pytest.raises(client.ApiException) as caught:
        server.send(method, "RLRun", body, name)
    assert caught.value.status == 422, caught.value.body
    causes = ApiError.from_response(caught.value.status, caught.value.body).details["causes"]
    return {cause["field"]: cause["message"] for cause in causes}


@pytest.mark.parametrize("update", cases.updates("allowed"), ids=lambda u: u.name)
def test_allowed_updates(update: cases.Update, server: Server) -> None:
    with _created(update, server) as name:
        server.send("PATCH", update.object["kind"], update.change, name)


@pytest.mark.parametrize("update", cases.updates("refused"), ids=lambda u: u.name)
def test_refused_updates_name_the_field(update: cases.Update, server: Server) -> None:
    with _created(update, server) as name:
        with pytest.raises(client.ApiException) as caught:
            server.send("PATCH", update.object["kind"], update.change, name)
        assert _refusal(caught.value, update.field) == update.field


@contextmanager
def _created(update: cases.Update, server: Server) -> Iterator[str]:
    """The object under a name of its own: workers share the API server, and models have no namespace."""
    name = f"update-{uuid.uuid4().hex[:8]}"
    body = {**update.object, "metadata": {**update.object["metadata"], "name": name}}
    server.send("POST", body["kind"], body, dry_run=False)
    try:
        yield name
    finally:
        server.delete(body)


def _comparable(value: object) -> object:
    """Numbers as text: JSON makes no difference between 2 and 2.0, nor a quantity between 2 and "2"."""
    if isinstance(value, dict):
        return {k: _comparable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_comparable(v) for v in value]
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value
