"""Files in S3 with the state of a run's orchestrators, one per process.

A process on a node that has lost its connection to the cluster may still write to S3 while its token is valid. Each
process therefore writes to its own file. The next process copies this file once when it starts, and no later process
reads it. Separate files need no conditional writes, which some S3 servers do not support.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
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
    """Return the URI of file `number` of the COPY_STATES files for the orchestrator's states at recovery copies. The
    orchestrator may not delete files, so a new state replaces an old one, chosen by `copy_state_number`.
    """
    return layout.root / f"orchestrator/recovery-{number}.json"


def copy_state_number(steps: Sequence[int], step: int) -> int:
    """Return the number of the file in which to store the state of a recovery copy of `step`. `steps` has the step of
    the state in each file, or -1 for an empty file.

    A state of the same step is replaced first, because at most one file may have a given step. Otherwise the state of
    the nearest later step is replaced, because the run has returned to an earlier step. Otherwise an empty file is
    used, or the oldest state is replaced.
    """
    return min(range(len(steps)), key=lambda number: (steps[number] < step, steps[number]))


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
        data = _read(store, spool, older)
    own = state_uri(layout, newest + 1)
    store.put_bytes(own, data)
    return own, data


def read_checkpoint_state(store: Store, layout: RunLayout, spool: UploadSpool, step: int) -> bytes:
    """Return the state of `step` that was stored at `checkpoint_state_uri` or `copy_state_uri`, or an empty JSON object
    if there is none. Raises StoreError.
    """
    with contextlib.suppress(NotFound):
        return _read(store, spool, checkpoint_state_uri(layout, step))
    return next((data for found, data in _copy_states(store, layout, spool) if found == step), b"{}")


def read_copy_steps(store: Store, layout: RunLayout, spool: UploadSpool) -> list[int]:
    """Return the step of the state in each `copy_state_uri` file, or -1 for an empty file. Raises StoreError."""
    return [step for step, _ in _copy_states(store, layout, spool)]


def _copy_states(store: Store, layout: RunLayout, spool: UploadSpool) -> Iterator[tuple[int, bytes]]:
    for number in range(COPY_STATES):
        step, data = None, b"{}"
        with contextlib.suppress(NotFound, ValueError):
            data = _read(store, spool, copy_state_uri(layout, number))
            step = (parse_object(data) or {}).get("step")
        yield (step if isinstance(step, int) else -1), data


def _read(store: Store, spool: UploadSpool, uri: S3Uri) -> bytes:
    return spool.pending_version(uri) or store.get_bytes(uri)


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a state, or None for an empty object or any other JSON value. Raises ValueError."""
    state = json.loads(data)
    return state or None if isinstance(state, dict) else None
