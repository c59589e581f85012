"""Environments, their packages and the engine they ask, as fixtures."""

from tests.support.environments import make_group, make_runner, make_wheel, upstream, write_environment

__all__ = ["make_group", "make_runner", "make_wheel", "upstream", "write_environment"]
