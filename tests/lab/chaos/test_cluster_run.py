"""Runs of the end-to-end level: their model is one that the level installs."""

import yaml

from demo.install import EXAMPLES
from tests.chaos.cluster_run import SPEC


def test_runs_train_a_model_that_the_platform_of_the_demo_has() -> None:
    models = [yaml.safe_load(file.read_text()) for file in (EXAMPLES / "models").glob("reverse-text-tiny.yaml")]
    assert SPEC["model"] in [model["spec"]["id"] for model in models]
