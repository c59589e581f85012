"""Requests chat completions from deployed adapters, which rlrun-server streams."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.server import DirectServer, ProxiedServer
from rlrun_cli.terminal.errors import CliError

CHAT_PATH = "/v1/chat/completions"
MODELS_PATH = "/v1/models"
DATA = b"data:"
DONE = b"[DONE]"
MAX_LINE = 2 * 1024 * 1024

Message = dict[str, str]


def model_name(cluster: RemoteCluster, server: DirectServer | ProxiedServer, adapter: str) -> str:
    """Return the model name of an adapter. Raises CliError, StoreError.

    A name that contains a namespace or a base model is returned unchanged.
    """
    if "/" in adapter or ":" in adapter:
        return adapter
    # An API key has its own namespace, which may differ from the kubeconfig's.
    if not cluster.own_key() or cluster.is_namespace_chosen:
        return f"{cluster.namespace}/{adapter}"
    models = (server.send("GET", MODELS_PATH, None) or {}).get("data") or []
    names = [f"{m['namespace']}/{adapter}" for m in models if m.get("adapter") == adapter and m.get("namespace")]
    if len(names) == 1:
        return names[0]
    if names:
        raise CliError(f"several namespaces have an adapter named {adapter}", f"select one of them: {', '.join(names)}")
    raise CliError(
        f"the API key has access to no deployed adapter named {adapter}",
        f"deploy it: rlrun adapters deploy {adapter}; or select the adapter's namespace with -n",
    )


def ask(
    server: DirectServer | ProxiedServer, model: str, messages: Sequence[Message], options: dict[str, Any]
) -> Iterator[str]:
    """Yield the response text as it arrives. Raises CliError, StorageServerUnavailable."""
    body = {"model": model, "messages": list(messages), "stream": True, **options}
    for data in _data(server.stream(CHAT_PATH, body)):
        if data == DONE:
            return
        event = _parse(data)
        if isinstance(event.get("error"), dict):
            raise CliError(f"the response was aborted: {event['error'].get('message') or 'no cause was reported'}")
        for choice in event.get("choices") or []:
            text = (choice.get("delta") or {}).get("content") if isinstance(choice, dict) else None
            if text:
                yield str(text)
    raise CliError("the response ended prematurely", "try again")


def _data(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE:
            raise CliError(f"rlrun-server sent a line of more than {MAX_LINE} bytes")
        yield from (line.removeprefix(DATA).strip() for line in lines if line.startswith(DATA))


def _parse(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CliError("rlrun-server did not return JSON", "check --server or RLRUN_SERVER")
    return document
