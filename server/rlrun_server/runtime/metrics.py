"""Metrics of the server."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
SIGNATURES = Counter(
    "rlrun_server_signatures_total", "Requests for a signature, by role and outcome.", ["role", "outcome"],
    registry=REGISTRY,
)  # fmt: skip
SIGN_SECONDS = Histogram(
    "rlrun_server_sign_seconds", "Time to respond to a request for a signature, including the token review.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5), registry=REGISTRY,
)  # fmt: skip
REVIEWS = Counter(
    "rlrun_server_token_reviews_total", "Token reviews sent to the API server, by outcome.", ["outcome"],
    registry=REGISTRY,
)  # fmt: skip
USER_REVIEWS = Counter(
    "rlrun_server_user_requests_total", "Requests of users, by the outcome of the review of their token.", ["outcome"],
    registry=REGISTRY,
)  # fmt: skip
STORE_SIGNING = Gauge(
    "rlrun_server_storage_signing",
    "1 for the current method of signing tenants' requests to S3: headers, query, refused (the S3 server is unsafe), "
    "or unknown.",
    ["method"], registry=REGISTRY,
)  # fmt: skip
CONNECTIONS = Gauge(
    "rlrun_server_connections", "Open connections, by state: busy while a request is in progress, or idle.", ["state"],
    registry=REGISTRY,
)  # fmt: skip
MAX_CONNECTIONS = Gauge("rlrun_server_connections_limit", "Maximum number of open connections.", registry=REGISTRY)
CERTIFICATE_START = Gauge(
    "rlrun_server_certificate_not_before_seconds", "Unix time from which the certificate in use is valid.",
    registry=REGISTRY,
)  # fmt: skip
CERTIFICATE_END = Gauge(
    "rlrun_server_certificate_not_after_seconds", "Unix time until which the certificate in use is valid.",
    registry=REGISTRY,
)  # fmt: skip
