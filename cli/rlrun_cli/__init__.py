"""Command line of rlrun."""

__version__ = "0.1.0"
"""That of pyproject.toml: reading it from the installed package takes longer than all other work of `--version`."""
