"""Sends objects to the API server as `kubectl` does."""

from typing import Any

from kubernetes import client
from rlrun.codegen.crd import KINDS
from rlrun.constants import GROUP, VERSION

Object = dict[str, Any]

BY_NAME = {kind.name: kind for kind in KINDS}


class Server:
    """Creates and changes objects as `kubectl` does: unknown fields are errors."""

    def __init__(self, api: client.ApiClient, namespace: str):
        self.api, self.namespace = api, namespace

    def send(self, method: str, kind_name: str, body: Object | None, name: str = "", dry_run: bool = True) -> Object:
        kind = BY_NAME[kind_name]
        place = f"/namespaces/{self.namespace}" if kind.namespaced else ""
        path = f"/apis/{GROUP}/{VERSION}{place}/{kind.plural}" + (f"/{name}" if name else "")
        answer: Object = self.api.call_api(
            path,
            method,
            query_params=[("fieldValidation", "Strict"), *([("dryRun", "All")] if dry_run else [])],
            header_params={
                "Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json",
                "Accept": "application/json",
            },
            body=_as_go_writes(body),
            auth_settings=["BearerToken"],
            response_types_map={200: "object", 201: "object"},
            _return_http_data_only=True,
        )
        return answer

    def delete(self, obj: Object) -> None:
        self.send("DELETE", obj["kind"], None, obj["metadata"]["name"], dry_run=False)


def _as_go_writes(value: Any) -> Any:
    """2.0 as 2: Go's JSON, and so kubectl, writes whole numbers without a fraction.

    A client that writes 2.0 is accepted as well, except in fields that a rule reads: CEL takes no fraction for an int.
    """
    if isinstance(value, dict):
        return {key: _as_go_writes(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_as_go_writes(below) for below in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
