"""The cluster in memory, as strict as an API server where a crash or a clock could make the operator write nonsense."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from rlrun.api.adapter import RLAdapterStatus
from rlrun.api.checkpoint import RLCheckpointStatus
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.errors import ApiError
from rlrun.kube.requests import KubeRequest

from tests.support.clocks import Clock
from tests.support.fake_cluster import FakeCluster, merged

Obj = dict[str, Any]

STATUSES: dict[str, Any] = {"RLRun": RLRunStatus, "RLCheckpoint": RLCheckpointStatus, "RLAdapter": RLAdapterStatus}


class StrictCluster(FakeCluster):
    """Refuses a status that the schema does not know, and knows the time of a deletion. Shows writes to the oracle."""

    def __init__(self, clock: Clock, *objects: Obj) -> None:
        super().__init__(*objects)
        self._clock = self.time = clock
        self.on_apply: Callable[[Obj], None] = lambda _: None
        """Called with every object that the operator is about to write."""
        self.on_status: Callable[[Obj, Obj], None] = lambda old, new: None
        """Called with an object as it was and the status that it gets."""

    async def apply(self, request: KubeRequest) -> Obj:
        """Server-side apply."""
        self.on_apply(request.body or {})
        return await super().apply(request)

    async def apply_status(self, request: KubeRequest) -> Obj:
        """Validates the status as the CRD's schema does."""
        obj = request.body or {}
        self._validate(obj["kind"], obj["metadata"]["name"], obj["status"])
        held = self.objects.get(self._key(obj))
        if held is not None and obj["metadata"].get("uid") in (None, held["metadata"]["uid"]):
            self.on_status(held, obj["status"])
        return await super().apply_status(request)

    async def patch_status(self, request: KubeRequest) -> Obj:
        """Validates and shows the status as it will be."""
        held, changes = self._held(request), request.body or {}
        if changes["metadata"]["resourceVersion"] == held["metadata"]["resourceVersion"]:
            status = merged(held.get("status"), changes["status"])
            self._validate(held["kind"], held["metadata"]["name"], status)
            self.on_status(held, status)
        return await super().patch_status(request)

    def _validate(self, kind: str, name: str, status: Obj) -> None:
        model = STATUSES.get(kind)
        if model is None:
            return
        try:
            model.model_validate(status, by_alias=True, by_name=False)
        except ValidationError as error:
            raise ApiError(422, "Invalid", f"{kind} {name}: {error}") from error

    def request_deletion(self, obj: Obj, now: datetime | None = None) -> None:
        """The first request's time stays."""
        since = obj["metadata"].get("deletionTimestamp")
        when = datetime.fromisoformat(since) if since else self._clock.now
        super().request_deletion(obj, when)
