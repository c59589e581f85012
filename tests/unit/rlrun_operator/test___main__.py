"""How the operator's process begins."""

import gc
import logging
from collections.abc import Coroutine
from typing import Any

import pytest
from rlrun_operator import __main__ as command

from tests.support.operator_world import SETTINGS


def test_garbage_collections_skip_what_the_imports_have_made(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []

    def run(work: Coroutine[Any, Any, None]) -> None:
        work.close()
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(command, "load_settings", lambda: SETTINGS)
    monkeypatch.setattr(command.asyncio, "run", run)
    level, thresholds = logging.getLogger("kopf").level, gc.get_threshold()
    gc.unfreeze()
    try:
        assert command.main() == 0
        assert gc.get_threshold() == command.GC_THRESHOLDS
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        logging.getLogger("kopf").setLevel(level)
    assert frozen[0] > 10_000
