"""`python -m rlrun.cli`."""

from rlrun.cli.main import app

app(prog_name="rlrun")
