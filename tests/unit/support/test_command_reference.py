from rlrun_cli.command_table import ROOT

from tests.support.command_reference import COMMAND, PAGE, page


def test_the_reference_of_the_command_line_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"run `{COMMAND}`"


def test_it_has_all_commands_and_the_shared_options_once() -> None:
    text = page()
    for name, entry in ROOT.items():
        assert (f"## rlrun {name}\n" in text or f"## rlrun {name} " in text) is not entry.hidden
    assert text.count("`--kubeconfig VALUE`") == 1
