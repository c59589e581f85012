"""Data of public environments that needs a network is replaced."""

import json
from pathlib import Path

from bench.public_environments import WORDS, _add_nltk_data


def test_the_package_of_wordle_has_the_data_of_nltk(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("from wordle.taskset import WordleTaskset\n")
    _add_nltk_data(tmp_path)
    module = (tmp_path / "__init__.py").read_text()
    assert module.index("nltk.data.path") < module.index("WordleTaskset")
    (tags,) = tmp_path.rglob("*.tagdict.json")
    assert json.loads(tags.read_text()).keys() == set(WORDS)
    assert (tmp_path / "nltk_data" / "corpora" / "words" / "en-basic").read_text().split() == list(WORDS)
