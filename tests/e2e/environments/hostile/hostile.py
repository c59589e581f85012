"""An environment whose code tries what a tenant must not do. Each attempt is a metric: 1 if it was refused.

It has what code in the pod can have: the network, and the variables of all processes of its user. The network of the
local cluster enforces no policies, so each refusal is that of the process that was asked. Two metrics say whose kernel
the code sees.
"""

import ctypes
import functools
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import verifiers as vf
from datasets import Dataset

WORDS = ["apple", "river"]
SECONDS = 20.0
READ_ALL = 3
"""SYSLOG_ACTION_READ_ALL of syslog(2)."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def load_environment(s3: str, server: str, package: str, kernel: str) -> vf.Environment:
    """Two prompts.

    `s3`: URL of the bucket. `server`: rlrun-server's. `package`: one that the run does not name. `kernel`: the release
    of the node's kernel, which code sees unless a RuntimeClass gives its pod another one.
    """
    attempts: dict[str, Callable[[], bool]] = {
        "api_server_refused": lambda: not ACCOUNT.exists() and _status(_api_server(), token=None) in (401, 403),
        "s3_refused": lambda: _status(s3, token=None) == 403,
        "signature_refused": lambda: _signature(f"{server}/storage/v1/sign", s3, grant="e30.e30") == 403,
        "user_signature_refused": lambda: _signature(f"{server}/rlrun/v1/sign", s3) == 401,
        "has_no_s3_key": lambda: not any(b"AWS_SECRET" in text for text in _variables()),
        "trainer_refused": lambda: _status(_url("trainer", 8080, "/sessions/x"), "PUT") == 401,
        "engine_refused": lambda: _status(_url("inference", 8000, "/v1/load_lora_adapter"), "POST") == 401,
        "engine_tokenizer_refused": lambda: _status(_url("inference", 8000, "/tokenize"), "POST") == 401,
        "sidecar_refused": lambda: _status(_url("inference", 8001, "/adapters/x"), "DELETE") == 401,
        "status_refused": lambda: _status(_url("orchestrator", 8080, "/status")) == 401,
        "package_refused": lambda: _status(_url("orchestrator", 8000, f"/environments/{package}")) in (401, 404),
        "group_refused": lambda: _status(_url("orchestrator", 8000, f"/groups/g-{'0' * 32}/v1/models")) == 404,
        "node_kernel_hidden": lambda: kernel not in Path("/proc/version").read_text() and kernel != os.uname().release,
        "kernel_is_gvisor": lambda: b"gVisor" in _kernel_log(),
    }
    metrics = [_metric(name, attempt) for name, attempt in attempts.items()]
    rows = [{"prompt": [{"role": "user", "content": word}], "answer": word[::-1]} for word in WORDS]
    rubric = vf.Rubric(funcs=[likeness, *metrics], weights=[1.0, *(0.0 for _ in metrics)])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)


def likeness(completion: Any, answer: str, **_: Any) -> float:
    """Return the share of characters in place."""
    text = completion[-1]["content"] if completion else ""
    return sum(a == b for a, b in zip(text, answer, strict=False)) / max(len(text), len(answer))


def _metric(name: str, attempt: Callable[[], bool]) -> Callable[..., float]:
    # Once for all rollouts: the answer does not change.
    once = functools.cache(attempt)

    def metric(**_: Any) -> float:
        return float(once())

    metric.__name__ = name
    return metric


def _status(url: str, method: str = "GET", token: str | None = "", body: bytes = b"{}") -> int:
    """Return the status of the answer. An empty `token` stands for the one that the pod's server has."""
    stolen = _stolen_token() if token == "" else token
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {stolen}"} if stolen else {})}
    request = urllib.request.Request(url, body if method in ("PUT", "POST") else None, headers, method=method)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, timeout=SECONDS, context=context) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _signature(url: str, s3: str, **more: str) -> int:
    """Return the status of a request for a signature with which the models in the bucket could be listed."""
    listing = f"{s3}?list-type=2&prefix=models%2F"
    asked = {"method": "GET", "url": listing, "headers": {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}, **more}
    return _status(url, "POST", body=json.dumps(asked).encode())


def _url(role: str, port: int, path: str) -> str:
    """Return a URL of another process of the own run, whose gateway's address the pod's server has."""
    config = next(
        json.loads(text.partition(b"=")[2]) for text in _variables() if text.startswith(b"RLRUN_ENVIRONMENT=")
    )
    host = str(urlsplit(config["packagesUrl"]).hostname).replace("-orchestrator.", f"-{role}.")
    return f"http://{host}:{port}{path}"


def _api_server() -> str:
    return "https://kubernetes.default.svc/api/v1/secrets"


def _stolen_token() -> str | None:
    names = (text.partition(b"=") for text in _variables())
    return next((value.decode() for name, _, value in names if name == b"RLRUN_TOKEN"), None)


def _kernel_log() -> bytes:
    """Return the messages of the kernel, as dmesg prints them. Empty where they are refused."""
    buffer = ctypes.create_string_buffer(1 << 16)
    ctypes.CDLL(None).klogctl(READ_ALL, buffer, len(buffer))
    return buffer.value


def _variables() -> list[bytes]:
    """Return the variables of all processes that this one may look into."""
    found = [f"{name}={value}".encode() for name, value in os.environ.items()]
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += file.read_bytes().split(b"\0")
        except OSError:
            continue
    return found
