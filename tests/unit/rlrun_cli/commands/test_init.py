from pathlib import Path

from tests.support.command_line import Rlrun


def test_init_never_overwrites(rlrun: Rlrun, tmp_path: Path) -> None:
    target = tmp_path / "rl.toml"
    assert rlrun("init", target).code == 0
    text = target.read_text()
    again = rlrun("init", target)
    assert again.code == 2
    assert "already exists" in again.err
    assert target.read_text() == text
    assert rlrun("init", tmp_path / "no" / "rl.toml").code == 2
