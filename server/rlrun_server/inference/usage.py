"""Usage of deployed models: token counts from the engines' responses, and the server's metrics for requests."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from rlrun_server.inference.deployed_models import DeployedModel
from rlrun_server.runtime.metrics import REGISTRY

MAX_TOKENS = 10_000_000
"""Maximum number of prompt tokens, and of completion tokens, that are counted for a request. A higher number is an
engine error.
"""
REQUESTS = Counter(
    "rlrun_server_inference_requests_total",
    "Requests to deployed models, by namespace and adapter (empty for a base model or hidden tenants) and outcome.",
    ["namespace", "adapter", "outcome"], registry=REGISTRY,
)  # fmt: skip
TOKENS = Counter(
    "rlrun_server_inference_tokens_total",
    "Tokens that the engines of deployed models counted, by namespace and adapter (as for requests) and kind.",
    ["namespace", "adapter", "kind"], registry=REGISTRY,
)  # fmt: skip
SECONDS = Histogram(
    "rlrun_server_inference_seconds", "Duration of requests to deployed models, to the last byte of the response.",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 150, 300, 600), registry=REGISTRY,
)  # fmt: skip
IN_PROGRESS = Gauge(
    "rlrun_server_inference_in_progress", "Requests to deployed models that are in progress.", registry=REGISTRY
)


@dataclass(frozen=True)
class TokenUsage:
    """Number of tokens in the prompt and in the completion of one request."""

    prompt: int = 0
    completion: int = 0


def read_usage(answer: Any) -> TokenUsage | None:
    """Return the usage in an engine's response or event, or None if it has none."""
    fields = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(fields, dict):
        return None
    return TokenUsage(_count(fields.get("prompt_tokens")), _count(fields.get("completion_tokens")))


def count(model: DeployedModel, outcome: str, usage: TokenUsage | None, seconds: float, *, names_tenants: bool) -> None:
    """Add a request to the server's metrics.

    `outcome` is `ok`, `refused` (by the engine), `failed`, or `left` (the client disconnected). If `names_tenants` is
    False, the labels for namespace and adapter are empty, because every pod can read the metrics.
    """
    namespace, adapter = (model.namespace, model.adapter) if names_tenants else ("", "")
    REQUESTS.labels(namespace, adapter, outcome).inc()
    SECONDS.observe(seconds)
    if usage is not None:
        TOKENS.labels(namespace, adapter, "prompt").inc(usage.prompt)
        TOKENS.labels(namespace, adapter, "completion").inc(usage.completion)


def _count(value: object) -> int:
    return min(value, MAX_TOKENS) if isinstance(value, int) and value > 0 else 0


class RequestRecord:
    """Context manager that adds a request to the metrics when it ends. Unless the caller sets `outcome` and `usage`,
    the request counts as `failed`, without tokens.
    """

    def __init__(self, model: DeployedModel, clock: Callable[[], float], *, names_tenants: bool) -> None:
        self.model = model
        self.outcome = "failed"
        self.usage: TokenUsage | None = None
        self._clock = clock
        self._names_tenants = names_tenants
        self._began = clock()

    def __enter__(self) -> "RequestRecord":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        seconds = self._clock() - self._began
        count(self.model, self.outcome, self.usage, seconds, names_tenants=self._names_tenants)
