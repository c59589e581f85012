import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping

import pytest
import typer.main
from rlrun_cli import __version__
from rlrun_cli.command_table import ROOT
from rlrun_cli.main import app
from rlrun_cli.terminal.lazy_group import CommandEntry, Entry, GroupEntry

from tests.support.command_line import Rlrun
from tests.support.source_tree import PYTHONPATH
from tests.support.source_tree import ROOT as REPOSITORY

CLIENTS = ("aiohttp", "boto3", "botocore", "kubernetes", "zstandard")
FORMATS = ("rich", "yaml")
SECONDS = 60


def commands(
    entries: Mapping[str, Entry], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], CommandEntry]]:
    for name, entry in entries.items():
        if isinstance(entry, GroupEntry):
            yield from commands(entry.commands, (*path, name))
        else:
            yield (*path, name), entry


def imported_by(*words: str) -> set[str]:
    """Return the packages that are imported while the command line runs."""
    code = f"""
import sys
from rlrun_cli.main import app
try:
    app({list(words)!r}, prog_name="rlrun")
except SystemExit as end:
    assert not end.code, end.code
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.split()}


@pytest.mark.slow
@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_import_nothing_that_commands_work_with(word: str) -> None:
    assert not imported_by(word) & {*CLIENTS, *FORMATS, "email", "pydantic"}


@pytest.mark.slow
def test_help_of_a_group_imports_no_command() -> None:
    assert not imported_by("env", "--help") & {*CLIENTS, *FORMATS}


@pytest.mark.slow
def test_help_of_a_command_imports_no_client() -> None:
    assert not imported_by("list", "--help") & set(CLIENTS)


@pytest.mark.slow
def test_the_table_of_runs_needs_no_schema() -> None:
    code = "import sys; import rlrun_cli.commands.runs; print('rlrun.api.base.schema' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.stdout == "False\n", done.stderr


def test_the_version_is_that_of_the_project(rlrun: Rlrun) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert __version__ == project["version"]
    assert rlrun("--version").out == f"rlrun {project['version']}\n"


@pytest.mark.parametrize(("path", "entry"), [pytest.param(p, e, id=" ".join(p)) for p, e in commands(ROOT)])
def test_every_command_has_a_help_page_with_examples(rlrun: Rlrun, path: tuple[str, ...], entry: CommandEntry) -> None:
    answer = rlrun(*path, "--help")
    assert answer.code == 0
    assert "Examples:\n\n  rlrun " in answer.out, "an epilog gives examples"
    assert entry.summary.endswith("."), "the summary is a sentence"


def test_all_commands_are_in_the_help_page(rlrun: Rlrun) -> None:
    shown = rlrun("--help").out
    for name, entry in ROOT.items():
        assert (f"\n  {name} " in shown) is not entry.hidden
    assert typer.main.get_command(app).commands.keys() == ROOT.keys()  # type: ignore[attr-defined]


def test_an_unknown_command_names_a_similar_one(rlrun: Rlrun) -> None:
    answer = rlrun("lost")
    assert answer.code == 2
    assert "Did you mean" in answer.err
