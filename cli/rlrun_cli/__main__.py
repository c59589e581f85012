"""Entry point of `python -m rlrun_cli`."""

from rlrun_cli.main import app

app(prog_name="rlrun")
