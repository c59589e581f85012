"""Kubernetes Events that the operator writes."""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.events import EventRecord, build_event
from rlrun.kube.objects import Obj

log = logging.getLogger(__name__)


async def write_events(cluster: AsyncKubeClient, obj: Obj, events: Iterable[EventRecord]) -> None:
    """Write Events about an object. Errors are only logged, because a missing Event must not fail a run."""
    for event in events:
        try:
            await cluster.create(build_event(obj, event, datetime.now(UTC)))
        except ApiError as error:
            log.warning("Could not write Event %s about %s: %s", event.reason, obj["metadata"]["name"], error)
