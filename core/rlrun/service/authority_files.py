"""End of a process whose certificate authorities have changed: clients read them once, at the start.

A mounted ConfigMap or Secret changes in a running pod, and an init container does not run again with a restarted
container. So a process that follows its files writes the bundle itself when it starts, and ends as after SIGTERM when a
file has changed. Kubernetes starts it again. Files that cannot be used end nothing.
"""

import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rlrun.constants import CA_BUNDLE_FILE_VARIABLE, CA_BUNDLE_PATH
from rlrun.service.trust_bundle import certificates, merge

log = logging.getLogger(__name__)

CLUSTER_AUTHORITY = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
"""Authority of the API server, as each pod with a ServiceAccount's token has it."""
LOOK_SECONDS = 30.0
"""Pause between two reads. The kubelet takes a minute or more to update a file."""
SPREAD_SECONDS = 60.0
"""Longest pause before the end: replicas see a change at about the same time and should not end together."""


class AuthorityFiles:
    """Files with certificates in PEM, and their content at the start."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Files that do not exist are left out."""
        self._begun = {file: content for file in files if (content := _read(file)) is not None}

    def find_change(self) -> Path | None:
        """Return a file that has other certificates than at the start, None if there is none."""
        for file, begun in self._begun.items():
            content = _read(file)
            if content is None or content == begun:
                continue
            try:
                if certificates(content) != certificates(begun):
                    return file
            except ValueError as error:
                log.error("%s has changed and cannot be used: %s. The authorities stay as they were", file, error)
        return None


def follow_authorities(environment: Mapping[str, str] = os.environ, bundle: Path = Path(CA_BUNDLE_PATH)) -> None:
    """Write the bundle anew, and end this process when its authorities change.

    Call it before the first client is made. RLRUN_CA_BUNDLE_FILE names the certificates of `caBundle`.
    """
    source = environment.get(CA_BUNDLE_FILE_VARIABLE, "")
    watched = AuthorityFiles([*([Path(source)] if source else []), CLUSTER_AUTHORITY])
    if source:
        try:
            bundle.write_text(merge(Path(source).read_text("utf-8")), "utf-8")
        except (OSError, ValueError) as error:
            log.error("the certificates in %s cannot be used: %s. %s stays as it was", source, error, bundle)
    end_on_change(watched)


def end_on_change(
    files: AuthorityFiles,
    end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    look_seconds: float = LOOK_SECONDS,
    spread_seconds: float = SPREAD_SECONDS,
) -> threading.Thread:
    """Start a thread that calls `end` once after a change."""

    def watch() -> None:
        wait = threading.Event().wait
        while (file := files.find_change()) is None:
            wait(look_seconds)
        log.warning("%s has changed: this process ends, and starts again with the new authorities", file)
        wait(random.uniform(0, spread_seconds))
        end()

    thread = threading.Thread(target=watch, name="authorities", daemon=True)
    thread.start()
    return thread


def _read(file: Path) -> str | None:
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError):
        return None
