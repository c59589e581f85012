"""Wait for S3 at the start of an orchestrator."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from rlrun.constants import ExitCode
from rlrun.service.errors import FatalError
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import AccessDenied, BucketMissing, StoreError, Unreachable
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.storage import startup
from rlrun_orchestrator.storage.startup import StartupStateLoader, StartupTimeouts
from rlrun_orchestrator.storage.upload_spool import UploadSpool

SECONDS_OF_A_CHECK = 30.0
TIMEOUTS = StartupTimeouts(component=600.0, trainer=600.0, denied_storage=120.0, poll_interval=0.0)


class Store:
    """Fails with one error after the other, and then answers."""

    def __init__(self, errors: Sequence[type[StoreError]]) -> None:
        self._errors = list(errors)
        self.now = 0.0

    def check(self, _: S3Uri) -> None:
        self.now += SECONDS_OF_A_CHECK
        if self._errors:
            raise self._errors.pop(0)("m")


async def wait(monkeypatch: pytest.MonkeyPatch, folder: Path, errors: Sequence[type[StoreError]]) -> float:
    """Return the seconds until the wait is over."""
    store = Store(errors)
    monkeypatch.setattr(startup, "time", SimpleNamespace(monotonic=lambda: store.now))
    layout = RunLayout.of("bucket", "prefix", "team", "uid")
    conditions = StatusConditions()
    loader = StartupStateLoader(store, layout, conditions, TIMEOUTS, UploadSpool(folder, 1))  # type: ignore[arg-type]
    await loader.wait_for_bucket()
    assert conditions.waiting_for is None
    return store.now


@pytest.mark.parametrize(
    "errors",
    [
        [Unreachable] * 10 + [BucketMissing] * 4,
        [BucketMissing] * 4,
        [BucketMissing, Unreachable] * 8,
        [AccessDenied] * 3 + [Unreachable] + [AccessDenied] * 4,
    ],
    ids=["silence before", "two minutes", "in turns", "again after a silence"],
)
async def test_a_bucket_that_is_denied_for_a_while_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, errors: list[type[StoreError]]
) -> None:
    assert await wait(monkeypatch, tmp_path, errors) == (len(errors) + 1) * SECONDS_OF_A_CHECK


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([BucketMissing] * 5, ExitCode.CONFIGURATION),
        ([AccessDenied] * 5, ExitCode.CONFIGURATION),
        ([Unreachable] * 21, ExitCode.RESTART),
        ([Unreachable] * 19 + [BucketMissing] * 2, ExitCode.CONFIGURATION),
    ],
    ids=["missing", "denied", "silent", "missing at the deadline"],
)
async def test_a_wait_for_the_bucket_has_an_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, errors: list[type[StoreError]], code: ExitCode
) -> None:
    with pytest.raises(FatalError) as found:
        await wait(monkeypatch, tmp_path, errors)
    assert found.value.exit_code == code
