"""Restarts a process when its certificate authorities change, because clients read the authorities only once.

A mounted ConfigMap or Secret changes in a running pod, but init containers do not run again. A process that watches its
authority files therefore writes the bundle itself when it starts. When a file changes, the process sends itself SIGTERM
and shuts down, and Kubernetes restarts it. A change that makes a file invalid is ignored.
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
"""File with the API server's certificate authority, in each pod with a ServiceAccount token."""
LOOK_SECONDS = 30.0
"""Seconds between two reads of the files. The kubelet takes a minute or more to update a file."""
SPREAD_SECONDS = 60.0
"""Maximum random delay of the shutdown in seconds, because replicas see a change at about the same time."""


class AuthorityFiles:
    """PEM files with certificates, and their content when this process started."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Read the certificates in `files`. Missing files are ignored."""
        self._begun = {file: content for file in files if (content := _read(file)) is not None}

    def find_change(self) -> Path | None:
        """Return a file whose certificates have changed since the start, or None."""
        for file, begun in self._begun.items():
            content = _read(file)
            if content is None or content == begun:
                continue
            try:
                if certificates(content) != certificates(begun):
                    return file
            except ValueError as error:
                log.error("%s has changed but cannot be used: %s. The previous certificates stay in use", file, error)
        return None


def follow_authorities(environment: Mapping[str, str] = os.environ, bundle: Path = Path(CA_BUNDLE_PATH)) -> None:
    """Write the public certificates and those of `caBundle` to `bundle`, and shut down this process when the
    certificates of `caBundle` or the API server change.

    Must be called before the first client is created. RLRUN_CA_BUNDLE_FILE is the path of the certificates of
    `caBundle`; if it is unset, `bundle` is not written.
    """
    source = environment.get(CA_BUNDLE_FILE_VARIABLE, "")
    watched = AuthorityFiles([*([Path(source)] if source else []), CLUSTER_AUTHORITY])
    if source:
        try:
            bundle.write_text(merge(Path(source).read_text("utf-8")), "utf-8")
        except (OSError, ValueError) as error:
            log.error("%s cannot be used: %s. %s is left unchanged", source, error, bundle)
    end_on_change(watched)


def end_on_change(
    files: AuthorityFiles,
    end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    look_seconds: float = LOOK_SECONDS,
    spread_seconds: float = SPREAD_SECONDS,
) -> threading.Thread:
    """Start a thread that calls `end` once after one of `files` has changed."""

    def watch() -> None:
        wait = threading.Event().wait
        while (file := files.find_change()) is None:
            wait(look_seconds)
        log.warning("%s has changed: restarting this process to use the new certificates", file)
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
