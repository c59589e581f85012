"""Store of a run in memory, with failures of its checks and writes."""

from rlrun.storage.layout import S3Uri
from rlrun.storage.store import StoreError
from typing_extensions import override

from tests.support.fake_s3 import InMemoryStore


class RunStore(InMemoryStore):
    """The orchestrator's store."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = []
        """Raised one after the other by the next checks and writes."""
        self.away: StoreError | None = None
        """Raised by every write."""

    def _raise_next(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    @override
    def check(self, uri: S3Uri) -> None:
        self._raise_next()
        super().check(uri)

    @override
    def put_bytes(self, uri: S3Uri, data: bytes, *, replace: bool = True) -> None:
        self._raise_next()
        if self.away is not None:
            raise type(self.away)(str(self.away))
        super().put_bytes(uri, data, replace=replace)
