"""An evaluation environment is told all that a training environment is told, in a pod of its own."""

import json

import pytest

from tests.unit.rlrun_operator.resources.test_children import build, containers, templates


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
