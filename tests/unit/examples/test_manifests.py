"""The example files mean what they say, and YAML and TOML say the same."""

from pathlib import Path

import yaml
from rlrun.schema import toml
from rlrun.schema.model import RLModel
from rlrun.schema.run import RLRun

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def read(path: str):
    return yaml.safe_load((EXAMPLES / path).read_text())


def test_yaml_and_toml_are_the_same_run():
    run = RLRun.from_object(read("reverse-text.yaml"))
    loaded = toml.load(EXAMPLES / "reverse-text.toml")
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


def test_the_data_module_is_one_file_for_all():
    link = EXAMPLES / "reverse_text_model" / "reverse_text_data.py"
    assert link.resolve() == EXAMPLES / "environments" / "reverse_text" / "reverse_text_data.py"
