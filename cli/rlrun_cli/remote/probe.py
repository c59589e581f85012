"""Probes the API server before a command's first request, so that an outage is reported within seconds."""

from collections.abc import Callable, Iterator

from rlrun.constants import GROUP, VERSION
from rlrun.kube import requests
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.sync_client import SyncTransport
from typing_extensions import override

SERVED_KINDS = ResourceKind(GROUP, VERSION, "", "list of the kinds of rlrun.dev", namespaced=False)
"""Discovery path of the API group, which all authenticated users may read."""
ANSWER_SECONDS = 3.0
"""Time limit in seconds for one probe: connecting and the response. Commands must report an outage within 5 seconds."""


class ProbedTransport(SyncTransport):
    """Transport that lists the kinds of the API group before its first request.

    Listing many objects may take long, but a running API server lists its kinds at once. Raises ApiError if it does not
    respond.
    """

    def __init__(self, transport: SyncTransport, open_quick: Callable[[], SyncTransport]) -> None:
        """`open_quick` returns a transport whose requests time out after ANSWER_SECONDS."""
        self._transport = transport
        self._open_quick = open_quick
        self._is_probed = False

    @override
    def send(self, request: requests.KubeRequest) -> Obj:
        self._probe(request)
        return self._transport.send(request)

    @override
    def stream(self, request: requests.KubeRequest) -> Iterator[bytes]:
        self._probe(request)
        return self._transport.stream(request)

    def _probe(self, request: requests.KubeRequest) -> None:
        if self._is_probed:
            return
        try:
            self._open_quick().send(requests.get(SERVED_KINDS, None, ""))
        except ApiError as error:
            if error.is_unanswered:
                raise ApiError(error.status, error.reason, error.message, action=str(request)) from error
        self._is_probed = True
