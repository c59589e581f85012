"""Files in S3 with the state of a run's orchestrators, one per process.

A process on a node that has lost its connection to the cluster may still write to S3 while its token is valid. Each
process therefore writes to its own file. The next process copies this file once when it starts, and no later process
reads it. Such files need no conditional writes, which some S3 servers lack.
"""

import contextlib
import json
import re
from typing import Any

from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import NotFound, Store

from rlrun_orchestrator.storage.upload_spool import UploadSpool

NAME = re.compile(r"state-(\d{6,})\.json")
COPY_STATES = 4
"""Number of files for states of recovery copies. The trainer keeps two copies and uploads a third one."""


def state_uri(layout: RunLayout, process: int) -> S3Uri:
    """Return the URI of the state written by the run's orchestrator process with this number, counted from 1."""
    return layout.root / f"orchestrator/state-{process:06d}.json"


def checkpoint_state_uri(layout: RunLayout, step: int) -> S3Uri:
    """Return the URI at which the state of `step` is stored if the checkpoint of that step does not contain it."""
    return layout.root / f"orchestrator/step-{step:06d}.json"


def copy_state_uri(layout: RunLayout, number: int) -> S3Uri:
    """Return the URI for the orchestrator's state at the recovery copy with this number. The orchestrator may not
    delete files, so the newest COPY_STATES copies use the files of older ones.
    """
    return layout.root / f"orchestrator/recovery-{number % COPY_STATES}.json"


def claim_state(store: Store, layout: RunLayout, spool: UploadSpool) -> tuple[S3Uri, bytes]:
    """Return the URI for this process's state, and the content of its predecessor's state, which is copied to this URI.

    An object in this pod's spool takes precedence, because it is newer than the one in S3. Raises StoreError.
    """
    numbers = [
        match[1] for name, _ in store.list_files(layout.root / "orchestrator") if (match := NAME.fullmatch(name))
    ]
    newest = max(map(int, numbers), default=0)
    data = b"{}"
    if newest:
        older = state_uri(layout, newest)
        data = spool.pending_version(older) or store.get_bytes(older)
    own = state_uri(layout, newest + 1)
    store.put_bytes(own, data)
    return own, data


def read_checkpoint_state(store: Store, layout: RunLayout, spool: UploadSpool, step: int) -> bytes:
    """Return the state of `step` that was stored at `checkpoint_state_uri` or `copy_state_uri`, or an empty JSON object
    if there is none. Raises StoreError.
    """

    def read(uri: S3Uri) -> bytes:
        return spool.pending_version(uri) or store.get_bytes(uri)

    with contextlib.suppress(NotFound):
        return read(checkpoint_state_uri(layout, step))
    for number in range(COPY_STATES):
        with contextlib.suppress(NotFound, ValueError):
            data = read(copy_state_uri(layout, number))
            if (parse_object(data) or {}).get("step") == step:
                return data
    return b"{}"


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a state, or None for an empty object or any other JSON value. Raises ValueError."""
    state = json.loads(data)
    return state or None if isinstance(state, dict) else None
