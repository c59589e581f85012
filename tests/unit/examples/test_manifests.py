"""Example files are valid, and YAML and TOML files are equivalent."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from rlrun.api.model import RLModel
from rlrun.api.run import RLRun
from rlrun.api.toml import loader

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def read(path: str):
    return yaml.safe_load((EXAMPLES / path).read_text())


RUNS = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def test_every_environment_has_a_run():
    assert sorted(path.name.replace("_", "-") for path in (EXAMPLES / "environments").iterdir()) == RUNS


@pytest.mark.parametrize("name", RUNS)
def test_yaml_and_toml_define_the_same_run(name):
    run = RLRun.from_object(read(f"{name}.yaml"))
    loaded = loader.load(EXAMPLES / f"{name}.toml")
    assert loaded.spec.model_copy(update={"name": None}) == run.spec
    assert loaded.spec.name == run.metadata.name


def test_run_fits_its_model_and_environment():
    run = RLRun.from_object(read("reverse-text.yaml")).spec
    model = RLModel.from_object(read("models/reverse-text-tiny.yaml")).spec
    assert model.id == run.model
    longest = run.env[0].args["max_length"]
    # Text, separator, answer and end; and room for answers that are too long.
    assert longest + 1 < run.sampling.max_tokens
    assert longest + 1 + run.sampling.max_tokens <= model.seq_len
    assert (EXAMPLES / "environments" / "reverse_text" / "reverse_text.py").is_file()
    assert run.env[0].id == "rlrun/reverse-text"


@pytest.mark.parametrize("name", RUNS)
def test_model_and_packages_of_a_run_exist(name):
    run = RLRun.from_object(read(f"{name}.yaml")).spec
    models = [RLModel.from_object(yaml.safe_load(path.read_text())).spec for path in EXAMPLES.glob("models/*.yaml")]
    model = next(model for model in models if model.id == run.model)
    assert run.sampling.max_tokens < model.seq_len
    for used in [*run.env, *(run.eval.env if run.eval else [])]:
        owner, package = used.id.split("/")
        folder = EXAMPLES / "environments" / package.replace("-", "_")
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        assert (project["tool"]["rlrun"]["owner"], project["project"]["name"]) == (owner, package)
        function = re.search(r"def load_environment\((.*?)\) ->", (folder / f"{folder.name}.py").read_text(), re.DOTALL)
        assert set(used.args) <= set(re.findall(r"(\w+):", function[1]))


def test_one_example_has_evaluation_and_validation():
    run = RLRun.from_object(read("alphabet-sort.yaml")).spec
    assert run.val.interval == 10
    assert [used.id for used in run.eval.env] == ["rlrun/number-guess"]


def test_data_module_is_one_file():
    link = EXAMPLES / "reverse_text_model" / "reverse_text_data.py"
    assert link.resolve() == EXAMPLES / "environments" / "reverse_text" / "reverse_text_data.py"
