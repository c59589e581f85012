"""Kubernetes Events about the project's objects."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rlrun.constants import API_VERSION, FIELD_MANAGER
from rlrun.kube.objects import Obj

EVENT_MESSAGE_LIMIT = 1000
"""Maximum length of an Event's message. The API server accepts 1024 characters."""


@dataclass(frozen=True)
class EventRecord:
    """Kubernetes Event to write."""

    reason: str
    message: str
    warning: bool = False


def build_event(about: Mapping[str, Any], record: EventRecord, now: datetime) -> Obj:
    """Build the Event that `record` describes. `about` is its object, of one of the project's kinds."""
    metadata = about["metadata"]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    identity = f"{metadata['uid']}{record.reason}{record.message}{now.isoformat()}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": about.get("kind", "RLRun"),
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion"),
        },
        "reason": record.reason,
        "message": record.message[:EVENT_MESSAGE_LIMIT],
        "type": "Warning" if record.warning else "Normal",
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
