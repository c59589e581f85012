"""Watch of one collection in a thread, with the time of each event."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from kubernetes import client

METADATA_ONLY = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


class EventWatch:
    """Context manager that passes on type, object and Unix time of each event, in its own thread.

    If the API server ends the watch, it is reopened at the last resource version, so that no event is missed.
    """

    def __init__(
        self,
        api: client.ApiClient,
        path: str,
        on_event: Callable[[str, dict[str, Any], float], None],
        *,
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> None:
        self._api = api
        self._path = path
        self._on_event = on_event
        self._selector = field_selector
        self._accept = METADATA_ONLY if metadata_only else "application/json"
        self._version = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "EventWatch":
        page = json.loads(self._get([("limit", "1")]).data)
        self._version = page["metadata"]["resourceVersion"]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The thread ends with its request, because a response cannot be closed while another thread reads it.
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow()
            except Exception:
                # The control plane may stop before the request does.
                if not self._stopped.is_set():
                    raise

    def _follow(self) -> None:
        response = self._get([("watch", "1"), ("resourceVersion", self._version), ("timeoutSeconds", "600")])
        rest = b""
        for chunk in response.stream(1 << 16):
            if self._stopped.is_set():
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                self._pass_on(json.loads(line), time.time())

    def _pass_on(self, event: dict[str, Any], now: float) -> None:
        if event["type"] == "ERROR":
            raise RuntimeError(f"the watch of {self._path} was lost: {event['object'].get('message')}")
        self._version = event["object"]["metadata"]["resourceVersion"]
        self._on_event(event["type"], event["object"], now)

    def _get(self, parameters: list[tuple[str, str]]) -> Any:
        if self._selector:
            parameters = [*parameters, ("fieldSelector", self._selector)]
        return self._api.call_api(
            self._path,
            "GET",
            query_params=parameters,
            header_params={"Accept": self._accept if ("watch", "1") in parameters else "application/json"},
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
        )


class NewPods:
    """Context manager that counts the pods of all namespaces that have entered a phase."""

    def __init__(self, api: client.ApiClient, phase: str) -> None:
        selector = f"status.phase={phase}"
        self._watch = EventWatch(api, "/api/v1/pods", self._count, field_selector=selector, metadata_only=True)
        self.count = 0
        self.last = 0.0
        """Unix time at which the newest pod entered the phase."""

    def __enter__(self) -> "NewPods":
        self._watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__()

    def _count(self, event: str, _: dict[str, Any], now: float) -> None:
        if event == "ADDED":
            self.count += 1
            self.last = now
