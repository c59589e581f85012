"""Environments: what evaluation environments are told, and how pods with user code are separated from their nodes."""

import json

import pytest

from tests.unit.rlrun_operator.resources.test_children import build, containers, templates
from tests.unit.rlrun_operator.resources.test_pod_templates import pods


@pytest.mark.proves("eval.env.id", "eval.env.version", "eval.env.args", "eval.env.taskset", "eval.env.harness")
def test_evaluation_environment_pod_gets_its_configuration() -> None:
    entry = {
        "id": "o/g",
        "name": "exam",
        "version": "2.1",
        "args": {"split": "test"},
        "taskset": {"num_examples": 10},
        "harness": {"max_turns": 8},
    }
    (container,) = containers(templates(build(eval={"env": [entry]}))["reverse-eval-0"])
    told = json.loads(next(e["value"] for e in container["env"] if e["name"] == "RLRUN_ENVIRONMENT"))
    del told["packagesUrl"], told["workers"]
    assert told == {
        "id": "o/g@2.1",
        "name": "exam",
        "args": {"split": "test"},
        "taskset": {"num_examples": 10},
        "harness": {"max_turns": 8},
    }


def test_pods_of_environments_alone_run_in_a_user_namespace_and_with_a_runtime_class() -> None:
    isolated = pods({"environments": {"hostUsers": False, "runtimeClassName": "gvisor"}})
    for name, spec in isolated.items():
        own = name.startswith(("reverse-env", "reverse-eval"))
        assert (spec.get("hostUsers"), spec.get("runtimeClassName")) == ((False, "gvisor") if own else (None, None))


def test_pods_of_environments_are_not_isolated_by_default() -> None:
    assert not any({"hostUsers", "runtimeClassName"} & spec.keys() for spec in pods().values())
