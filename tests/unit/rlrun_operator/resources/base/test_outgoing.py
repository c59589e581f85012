"""Authorities and proxy in the pods of runs and serving pools."""

import copy

from rlrun.constants import CA_BUNDLE_CONTAINER, CA_BUNDLE_DIR, CA_BUNDLE_VARIABLE, CA_CLIENT_VARIABLES

from tests.support.built_children import HUB, POOL, Obj, container_of, containers, pods, variables
from tests.unit.rlrun_operator.resources.base.test_pod_templates import MODEL_PODS, RUN_PODS

PROXY = "http://proxy.corp:3128"
SETTINGS: Obj = {"caBundle": "certificates", "proxy": {"httpsProxy": PROXY, "noProxy": [".svc", "10.0.0.0/8"]}}
MODEL: Obj = {"source": HUB}
PROXY_NAMES = {"HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"}


def test_an_init_container_writes_the_authorities_before_all_others() -> None:
    found = pods(SETTINGS, MODEL)
    assert set(found) == {*RUN_PODS, "reverse-env-1", POOL.name}
    for name, spec in found.items():
        writer, *others = containers({"spec": spec})
        assert writer["name"] == CA_BUNDLE_CONTAINER, name
        assert variables(writer)[CA_BUNDLE_VARIABLE] == "certificates"
        mount = {"name": "ca-bundle", "mountPath": CA_BUNDLE_DIR}
        assert mount in writer["volumeMounts"]
        for container in others:
            assert {**mount, "readOnly": True} in container["volumeMounts"], (name, container["name"])
            assert variables(container).keys() >= set(CA_CLIENT_VARIABLES)
            assert CA_BUNDLE_VARIABLE not in variables(container)


def test_all_but_environments_use_the_proxy() -> None:
    for name, spec in pods(SETTINGS, MODEL).items():
        for container in spec["containers"] + spec["initContainers"][1:]:
            given = variables(container)
            is_environment = name.startswith(("reverse-env", "reverse-eval"))
            assert PROXY_NAMES & given.keys() == (set() if is_environment else PROXY_NAMES), name
            if not is_environment:
                assert (given["HTTPS_PROXY"], given["no_proxy"]) == (PROXY, ".svc,10.0.0.0/8")


def test_variables_of_the_model_take_precedence() -> None:
    own = [{"name": "HTTPS_PROXY", "value": "http://own:1"}, {"name": "SSL_CERT_FILE", "value": "/own"}]
    spec = pods(SETTINGS, {**MODEL, "trainer": {"env": own}})["reverse-trainer"]
    (trainer,) = spec["containers"]
    names = [entry["name"] for entry in trainer["env"]]
    assert len(names) == len(set(names))
    assert (variables(trainer)["HTTPS_PROXY"], variables(trainer)["SSL_CERT_FILE"]) == ("http://own:1", "/own")


def test_containers_of_a_patch_have_the_authorities_and_the_proxy() -> None:
    agent = {"name": "agent", "image": "agent:1", "env": [{"name": "SSL_CERT_FILE", "value": "/own"}]}
    writer = {"name": CA_BUNDLE_CONTAINER, "resources": {"limits": {"memory": "64Mi"}}}
    patch = {"podTemplate": {"spec": {"containers": [agent], "initContainers": [writer]}}}
    patched = pods(SETTINGS, {**MODEL, "trainer": patch, "inference": patch})
    plain = pods(SETTINGS, MODEL)
    for name in MODEL_PODS:
        found = container_of({"spec": patched[name]}, "agent")
        assert {"name": "ca-bundle", "mountPath": CA_BUNDLE_DIR, "readOnly": True} in found["volumeMounts"]
        given = variables(found)
        assert (given["HTTPS_PROXY"], given["SSL_CERT_FILE"]) == (PROXY, "/own")
        assert given.keys() == {*CA_CLIENT_VARIABLES, *PROXY_NAMES}
        first, *others = patched[name]["initContainers"]
        assert (first["name"], first["image"]) == (CA_BUNDLE_CONTAINER, plain[name]["initContainers"][0]["image"])
        assert first["resources"]["limits"]["memory"] == "64Mi"
        assert others == plain[name]["initContainers"][1:]


def test_pods_that_are_built_again_from_a_patch_are_the_same() -> None:
    """A configuration is kept parsed: what is built from it must not change it."""
    agent = {"name": "agent", "image": "agent:1", "volumeMounts": [{"name": "tmp", "mountPath": "/own"}]}
    model = {**MODEL, "trainer": {"podTemplate": {"spec": {"containers": [agent]}}}}
    first = copy.deepcopy(pods(SETTINGS, model))
    assert pods(SETTINGS, model) == first


def test_without_values_pods_are_as_before() -> None:
    for name, spec in pods({}, MODEL).items():
        names = {v for c in containers({"spec": spec}) for v in variables(c)}
        assert not names & {*CA_CLIENT_VARIABLES, *PROXY_NAMES}, name
        assert CA_BUNDLE_CONTAINER not in {c["name"] for c in containers({"spec": spec})}
