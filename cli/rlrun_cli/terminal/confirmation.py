"""Asks for confirmation before irreversible actions."""

from typing import Annotated

import typer

from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import FAILED, INVALID, CliError

Yes = Annotated[bool, typer.Option("--yes", "-y", "--force", help="Delete without confirmation.")]


def confirm(question: str, refused: str, *, yes: bool) -> None:
    """Ask on standard error, unless `yes` is set.

    Raises typer.Exit if the user declines, and CliError with the message `refused` if there is no answer.
    """
    if yes:
        return
    try:
        confirmed = typer.confirm(question, err=True)
    except typer.Abort:
        raise CliError(
            f"{refused}, because there was no answer to the confirmation",
            "add --yes to skip the confirmation",
            code=INVALID,
        ) from None
    if not confirmed:
        output.notice("Cancelled; nothing was changed.")
        raise typer.Exit(FAILED)
