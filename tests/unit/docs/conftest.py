"""The environments of the guides run as written there."""

from tests.support.environments import make_group, make_runner, upstream, write_environment

__all__ = ["make_group", "make_runner", "upstream", "write_environment"]
