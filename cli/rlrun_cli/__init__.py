"""Command line of rlrun."""

__version__ = "0.2.0"
"""Version of pyproject.toml. Reading it from the installed package takes longer than all other work of `--version`."""
