from pathlib import Path

from rlrun.api.toml.loader import loads

from tests.support.command_line import Rlrun
from tests.support.source_tree import ROOT


def test_init_never_overwrites(rlrun: Rlrun, tmp_path: Path) -> None:
    target = tmp_path / "rl.toml"
    assert rlrun("init", target).code == 0
    text = target.read_text()
    again = rlrun("init", target)
    assert again.code == 2
    assert "already exists" in again.err
    assert target.read_text() == text


def test_init_makes_the_folder_of_the_file(rlrun: Rlrun, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "rl.toml"
    assert rlrun("init", target).code == 0
    assert target.is_file()
    answer = rlrun("init", target / "rl.toml")
    assert answer.code == 2


def test_standard_output_gets_the_file_and_nothing_else(rlrun: Rlrun, tmp_path: Path) -> None:
    rlrun("init", tmp_path / "rl.toml")
    answer = rlrun("init", "-")
    assert answer.out == (tmp_path / "rl.toml").read_text().replace(str(tmp_path / "rl.toml"), "rl.toml")
    assert answer.err == ""


def test_the_demonstration_is_the_example_that_the_local_cluster_can_run(rlrun: Rlrun) -> None:
    example = (ROOT / "examples" / "reverse-text.toml").read_text(encoding="utf-8")
    assert loads(rlrun("init", "-", "--demo").out) == loads(example)
