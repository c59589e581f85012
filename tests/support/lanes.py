"""Which tests stay together on one pytest worker: xdist's scheduler with a rule of the level's own.

A level names its rule in its conftest.py:

    def pytest_xdist_make_scheduler(config, log):
        return Together(config, log, lane)
"""

from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Give tests of the same group to the same worker, one after the other in the order of collection."""

    def __init__(self, config: pytest.Config, log: Any, group: Callable[[str], str]) -> None:
        """Take the rule that names the group of a test, given the test's node id."""
        super().__init__(config, log)
        self._group = group

    def _split_scope(self, nodeid: str) -> str:
        return self._group(nodeid)
