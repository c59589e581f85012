"""The orchestrator's ports, and its key of Weights & Biases without the rest of the Secrets that may hold it."""

from typing import Any

import pytest
from rlrun.protocol import signed_text
from rlrun.protocol.storage_access import GRANT_VARIABLE, StorageGrant
from rlrun_orchestrator.config import OrchestratorSettings

from tests.support.built_children import (
    SETTINGS,
    STORAGE_KEY,
    Children,
    Obj,
    build,
    containers,
    resolved,
    templates,
    variables,
)
from tests.support.expectations import present

SECRETS = [{"secretRef": {"name": "judge"}}, {"secretRef": {"name": "logging", "optional": True}}]


def env_of(found: Children, pod: str) -> list[Obj]:
    return [entry for c in containers(templates(found)[pod]) for entry in c["env"]]


def keys(**run: Any) -> dict[str, Obj]:
    entries = env_of(build(envFrom=SECRETS, **run), "reverse-orchestrator-a2")
    return {entry["name"]: entry for entry in entries if "WANDB" in entry["name"]}


def test_the_orchestrator_listens_where_its_service_leads() -> None:
    found = build()
    (main,) = containers(templates(found)["reverse-orchestrator-a2"])
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    given = {name: value for name, value in variables(main).items() if isinstance(value, str)}
    settings = OrchestratorSettings.from_environment(given)
    assert (settings.gateway_port, settings.status_port) == (ports["gateway"], ports["status"]) == (8088, 8089)
    service = found["Service", "reverse-orchestrator"]["spec"]["ports"]
    assert {(port["port"], port["targetPort"]) for port in service} == {(8000, "gateway"), (8080, "status")}


def test_the_orchestrator_reads_the_packages_of_the_run_and_lists_their_neighbours() -> None:
    entries = [{"id": "me/Pi.Agent_Env", "name": "a"}, {"id": "me/pi-agent-env@1.0", "name": "b"}, {"id": "o/e"}]
    (main,) = containers(templates(build(env=entries, eval=None))["reverse-orchestrator-a2"])
    grant = present(signed_text.verify(variables(main)[GRANT_VARIABLE], [STORAGE_KEY], StorageGrant))
    root = resolved().artifacts.environments_uri
    assert (grant.readable, grant.listable) == ([f"{root}/me/pi-agent-env", f"{root}/o/e"], [f"{root}/me", f"{root}/o"])


@pytest.mark.proves("wandb.project", "envFrom.secretRef.name")
def test_the_orchestrator_gets_the_key_of_every_secret_and_only_the_key() -> None:
    found = keys(wandb={"project": "p"})
    refs = [found[f"WANDB_API_KEY_{i}"]["valueFrom"]["secretKeyRef"] for i in (0, 1)]
    assert [ref["name"] for ref in refs] == ["judge", "logging"]
    assert all(ref["key"] == "WANDB_API_KEY" and ref["optional"] is True for ref in refs)
    assert len(found) == 2
    template = templates(build(envFrom=SECRETS, wandb={"project": "p"}))["reverse-orchestrator-a2"]
    assert all(
        {s["secretRef"]["name"] for s in c.get("envFrom", [])} == {"reverse-rlrun-token"} for c in containers(template)
    ), "the rest of the Secrets stays with the environments"


@pytest.mark.proves("wandb.offline")
def test_secrets_are_not_read_without_wandb() -> None:
    assert keys() == {}
    assert keys(wandb={"offline": True}) == {}


def test_no_other_pod_gets_the_key_by_name() -> None:
    found = build(envFrom=SECRETS, wandb={"project": "p"})
    for name in templates(found):
        if "orchestrator" not in name:
            assert not [e for e in env_of(found, name) if "WANDB" in e["name"] and e.get("value") != ""], name


@pytest.mark.parametrize("wandb", [{"project": "p"}, None])
def test_environments_do_not_get_the_key_with_the_other_keys_of_its_secret(wandb: Obj | None) -> None:
    found = build(envFrom=SECRETS, wandb=wandb)
    for name in ("reverse-env-0", "reverse-env-1", "reverse-eval-0"):
        (environment,) = containers(templates(found)[name])
        linked, *named = [e["secretRef"]["name"] for e in environment["envFrom"]]
        assert (linked[:6], named) == ("env.o.", ["judge", "logging"])
        # Kubernetes lets a variable of `env` win over one of the same name in `envFrom`.
        assert {"name": "WANDB_API_KEY", "value": ""} in environment["env"], name


LISTED = [([], ""), (["teacher.models.svc", "10.0.0.0/8"], "teacher.models.svc,10.0.0.0/8")]


@pytest.mark.parametrize(("listed", "value"), LISTED)
def test_the_orchestrator_always_gets_the_platforms_list_of_addresses(listed: list[str], value: str) -> None:
    settings = SETTINGS.model_copy(update={"private_addresses": listed})
    (container,) = containers(templates(build(settings=settings))["reverse-orchestrator-a2"])
    assert container["envFrom"], "a key of this Secret must not become the list"
    assert variables(container)["RLRUN_PRIVATE_ADDRESSES"] == value
