"""Logs of containers that a kubelet has removed. Pure; it imports nothing, for the command line.

Source: kubernetes/kubernetes issue 142258.
"""

import re

_REMOVED = re.compile(
    rb"unable to retrieve container logs for [a-z-]+://[0-9a-f]+|failed to try resolving symlinks in path [^\n]+"
)


def is_removed_log(text: bytes) -> bool:
    """Return whether a log is what kubelets answer, with status 200, for the log of a container that is removed."""
    return len(text) < 4096 and _REMOVED.fullmatch(text) is not None
