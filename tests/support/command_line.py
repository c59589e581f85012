"""The command line, called in the test's own process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlrun_cli.main import app
from rlrun_cli.remote.context import CliContext
from typer.testing import CliRunner


@dataclass
class Answer:
    """Result of a command."""

    code: int
    out: str
    err: str


Rlrun = Callable[..., Answer]
"""Call of a command with its words."""


def call(
    *words: object,
    context: CliContext | None = None,
    env: Mapping[str, str | None] | None = None,
    input: str | bytes | None = None,
) -> Answer:
    """Return the result of the command. Raises what the command does not turn into a message."""
    result = CliRunner().invoke(app, [str(word) for word in words], obj=context, env=env, input=input)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)
