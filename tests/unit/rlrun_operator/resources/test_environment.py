"""Environments: what evaluation environments are told, and how pods with user code are separated from their nodes."""

from typing import Any

import pytest

from tests.support.built_children import build, containers, pods, templates, told


@pytest.mark.proves("eval.env.id", "eval.env.version", "eval.env.args", "eval.env.taskset", "eval.env.harness")
def test_evaluation_environment_pod_gets_its_configuration() -> None:
    entry = {
        "id": "o/g",
        "name": "exam",
        "args": {"split": "test"},
        "taskset": {"num_examples": 10},
        "harness": {"max_turns": 8},
    }
    found = told(templates(build(eval={"env": [{**entry, "version": "2.1"}]}))["reverse-eval-0"])
    del found["packagesUrl"], found["workers"]
    assert found == {**entry, "id": "o/g@2.1"}


def test_pods_of_environments_alone_run_in_a_user_namespace_and_with_a_runtime_class() -> None:
    isolated = pods({"environments": {"hostUsers": False, "runtimeClassName": "gvisor"}})
    for name, spec in isolated.items():
        own = name.startswith(("reverse-env", "reverse-eval"))
        assert (spec.get("hostUsers"), spec.get("runtimeClassName")) == ((False, "gvisor") if own else (None, None))


def test_pods_of_environments_are_not_isolated_by_default() -> None:
    assert not any({"hostUsers", "runtimeClassName"} & spec.keys() for spec in pods().values())


def sources(pod: str, **run: Any) -> list[Any]:
    (container,) = containers(templates(build(**run))[pod])
    found: list[Any] = container.get("envFrom", [])
    return found


def test_an_environment_gets_the_variables_that_are_linked_to_it_and_no_others() -> None:
    """The Secrets that the run names come later, so that their keys win."""
    linked = [{"secretRef": {"name": f"env.o.{name}", "optional": True}} for name in ("e", "f", "g")]
    judge = {"secretRef": {"name": "judge", "optional": False}}
    pods_of_environments = ("reverse-env-0", "reverse-env-1", "reverse-eval-0")
    assert [sources(pod) for pod in pods_of_environments] == [[source, judge] for source in linked]
    others = [c for pod, t in templates(build()).items() if pod not in pods_of_environments for c in containers(t)]
    names = [source["secretRef"]["name"] for c in others for source in c.get("envFrom", [])]
    assert not [name for name in names if name.startswith("env.")]


def test_a_package_is_named_in_its_normalised_spelling_and_the_environment_as_written() -> None:
    entry = {"id": "o/Pi.Agent_Env", "version": "1.0"}
    pod = templates(build(env=[entry]))["reverse-env-0"]
    (container,) = containers(pod)
    assert (told(pod)["id"], told(pod)["name"]) == ("o/pi-agent-env@1.0", "Pi.Agent_Env")
    assert container["envFrom"][0]["secretRef"]["name"] == "env.o.pi-agent-env"


def test_a_reserved_name_is_not_linked() -> None:
    found = sources("reverse-env-0", env=[{"id": "o/bucket-s3"}], envFrom=[])
    assert found == []
