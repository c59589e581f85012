"""The example files mean what they say, and YAML and TOML say the same."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from rlrun.schema import toml
from rlrun.schema.model import RLModel
from rlrun.schema.run import RLRun

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def read(path: str):
    return yaml.safe_load((EXAMPLES / path).read_text())


RUNS = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def test_there_is_a_run_for_every_environment():
    assert sorted(path.name.replace("_", "-") for path in (EXAMPLES / "environments").iterdir()) == RUNS


@pytest.mark.parametrize("name", RUNS)
def test_yaml_and_toml_are_the_same_run(name):
    run = RLRun.from_object(read(f"{name}.yaml"))
    loaded = toml.load(EXAMPLES / f"{name}.toml")
    assert loaded.spec.model_copy(update={"name": None}) == run.spec
    assert loaded.spec.name == run.metadata.name


def test_the_run_fits_its_model_and_its_environment():
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
def test_a_run_names_a_model_and_packages_that_are_here(name):
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


def test_an_example_evaluates_and_validates():
    run = RLRun.from_object(read("alphabet-sort.yaml")).spec
    assert run.val.interval == 10
    assert [used.id for used in run.eval.env] == ["rlrun/number-guess"]


def test_the_data_module_is_one_file_for_all():
    link = EXAMPLES / "reverse_text_model" / "reverse_text_data.py"
    assert link.resolve() == EXAMPLES / "environments" / "reverse_text" / "reverse_text_data.py"
