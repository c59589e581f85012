"""Gets S3 signatures from rlrun-server for processes that have no credentials (`protocol.storage_access`)."""

import json
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import urllib3
from botocore.auth import S3SigV4Auth
from typing_extensions import override
from urllib3.exceptions import HTTPError, SSLError

from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.problem import Problem
from rlrun.protocol.storage_access import (
    GRANT_VARIABLE,
    PAYLOAD_HASH,
    SERVER_AUTHORITY_VARIABLE,
    SERVER_VARIABLE,
    SIGN_BATCH_PATH,
    SIGN_PATH,
    TOKEN_FILE_VARIABLE,
    RequestToSign,
    SignBatchRequest,
    SignedBatch,
    SignedHeaders,
    SignRequest,
)
from rlrun.storage.errors import AccessDenied, StorageServerUnavailable, StoreError

CONNECT_SECONDS = 3.0
READ_SECONDS = 5.0
TRIES = 4
BACKOFF = 0.2
"""Back-off factor in seconds. The pauses of 0, 0.4 and 0.8 seconds give another replica time to take over from a
replica that is shutting down.
"""
RETRYABLE_STATUSES = (429, 500, 502, 503, 504)
TRANSIENT_STATUSES = frozenset({401, *RETRYABLE_STATUSES})
"""HTTP statuses of errors that may be temporary, for which StorageServerUnavailable is raised. 401 is included, because
clocks may differ by seconds and the kubelet may have renewed the token.
"""
CONNECTIONS = 32
SIGNED_HEADERS = frozenset({"content-md5", "content-type", "if-match", "if-none-match"})
"""Headers that are signed in addition to all x-amz-*. `range` is not signed, because S3 does not require it and one
signature is then valid for all ranges of an object.
"""
READ_METHODS = ("GET", "HEAD")
REUSE_SECONDS = 20.0
"""Seconds for which signatures of reads, and signatures requested in advance, are kept. Signatures are valid for 15
minutes, but credentials may change.
"""
REMEMBERED_SIGNATURES = 256


Answer = TypeVar("Answer", bound=Schema)


class SignatureCache:
    """Cache that keeps signatures of reads, and signatures requested in advance, for REUSE_SECONDS.

    Threads that need the same signature share one request and its result, including a failure.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Future[tuple[SignedHeaders, float]]] = OrderedDict()
        """Signatures with their expiry, and requests in progress."""
        self.generation = 0
        """Number of times that the cache was cleared."""

    def get(self, key: Hashable, ask: Callable[[], SignedHeaders]) -> SignedHeaders:
        """Return the cached signature for `key`, or the result of `ask`. Propagates exceptions of `ask`."""
        with self._lock:
            signature = self._known.get(key)
            is_mine = signature is None or self._has_ended(signature)
            if signature is None or is_mine:
                signature = self._known[key] = Future()
                self._known.move_to_end(key)
            self._limit()
        if is_mine:
            try:
                signature.set_result((ask(), self._clock() + REUSE_SECONDS))
            except BaseException as error:
                signature.set_exception(error)
        return signature.result()[0]

    def add(self, key: Hashable, signed: SignedHeaders, generation: int) -> None:
        """Add a signature that will be needed soon, unless the cache was cleared after it had this `generation`."""
        signature: Future[tuple[SignedHeaders, float]] = Future()
        signature.set_result((signed, self._clock() + REUSE_SECONDS))
        with self._lock:
            if generation != self.generation:
                return
            self._known[key] = signature
            self._known.move_to_end(key)
            self._limit()

    def take(self, key: Hashable) -> SignedHeaders | None:
        """Remove and return a signature that was added, or None."""
        with self._lock:
            signature = self._known.pop(key, None)
        return None if signature is None or self._has_ended(signature) else signature.result()[0]

    def clear(self) -> None:
        """Drop all signatures. Requests in progress continue for their callers."""
        with self._lock:
            self.generation += 1
            self._known.clear()

    def _limit(self) -> None:
        while len(self._known) > REMEMBERED_SIGNATURES:
            self._known.popitem(last=False)

    def _has_ended(self, signature: "Future[tuple[SignedHeaders, float]]") -> bool:
        return signature.done() and (signature.exception() is not None or self._clock() >= signature.result()[1])


class RequestSigner(ABC):
    """Client that has S3 requests signed by rlrun-server. Thread-safe."""

    def __init__(self, region: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._digest = S3SigV4Auth(None, "s3", region)
        self._signatures = SignatureCache(clock)

    def sign(self, request: Any) -> None:
        """Add the signature to a request (botocore's AWSRequest). Raises AccessDenied, StorageServerUnavailable."""
        request.headers[PAYLOAD_HASH] = self._digest.payload(request)
        wanted = {
            name: str(value)
            for name, value in ((given.lower(), value) for given, value in request.headers.items())
            if name in SIGNED_HEADERS or name.startswith("x-amz-")
        }
        asked = RequestToSign(method=str(request.method), url=str(request.url), headers=wanted)
        signed = self.signature_for(asked)
        if signed.query:
            request.url = signed.signed_url(asked.url)
            del request.headers[PAYLOAD_HASH]
        for name, value in signed.headers.items():
            del request.headers[name]
            request.headers[name] = value

    def signature_for(self, asked: RequestToSign) -> SignedHeaders:
        """Return the signature of a request. Raises AccessDenied, StorageServerUnavailable."""
        if asked.method in READ_METHODS:
            return self._signatures.get(_key(asked), lambda: self._ask(asked))
        return self._signatures.take(_key(asked)) or self._ask(asked)

    @abstractmethod
    def sign_ahead(self, requests: Sequence[RequestToSign]) -> None:
        """Request the signatures of up to MAX_BATCH requests that follow immediately. Raises StorageServerUnavailable.

        Does nothing in a signer that requests one signature at a time.
        """

    def forget(self) -> None:
        """Drop all signatures, after S3 refused one or permissions changed."""
        self._signatures.clear()

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    def _ask(self, asked: RequestToSign) -> SignedHeaders:
        """Request a signature. Raises AccessDenied, StorageServerUnavailable."""


class RemoteSigner(RequestSigner):
    """Signer for a process of the platform, which authenticates with its pod's token and its grant."""

    def __init__(self, server: str, token_file: Path, grant: str, region: str, authority: str = "") -> None:
        """`authority` contains CA certificates, in PEM, to trust instead of those of the image. Raises ValueError if
        they are invalid.
        """
        super().__init__(region)
        self._server = server.rstrip("/")
        self._token_file = token_file
        self._grant = grant
        retries = urllib3.Retry(
            total=TRIES - 1,
            backoff_factor=BACKOFF,
            status_forcelist=RETRYABLE_STATUSES,
            allowed_methods=None,
            redirect=False,
            raise_on_status=False,
        )
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        self._http = urllib3.PoolManager(
            maxsize=CONNECTIONS, retries=retries, timeout=timeout, ssl_context=_trust(authority)
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], region: str) -> "RemoteSigner | None":
        """Return the signer that these variables describe, or None if they name no server. Raises ValueError."""
        server = environ.get(SERVER_VARIABLE)
        if not server:
            return None
        token_file, grant = Path(environ.get(TOKEN_FILE_VARIABLE, "")), environ.get(GRANT_VARIABLE, "")
        return cls(server, token_file, grant, region, environ.get(SERVER_AUTHORITY_VARIABLE, ""))

    @property
    def grant(self) -> str:
        """Signed StorageGrant, which may be replaced at any time."""
        return self._grant

    @grant.setter
    def grant(self, grant: str) -> None:
        if grant != self._grant:
            self._grant = grant
            self.forget()

    @override
    def close(self) -> None:
        self._http.clear()

    @override
    def sign_ahead(self, requests: Sequence[RequestToSign]) -> None:
        generation = self._signatures.generation
        try:
            body = SignBatchRequest(requests=list(requests), grant=self.grant)
            answer = self._post(SIGN_BATCH_PATH, body, f"{len(requests)} requests")
        except AccessDenied:
            # Then each request is signed separately, and its error says what is not allowed.
            return
        for request, signed in zip(requests, self._read(SignedBatch, answer).signed, strict=False):
            self._signatures.add(_key(request), signed, generation)

    @override
    def _ask(self, asked: RequestToSign) -> SignedHeaders:
        body = SignRequest(**asked.model_dump(), grant=self.grant)
        answer = self._post(SIGN_PATH, body, f"{asked.method} {asked.url.partition('?')[0]}")
        return self._read(SignedHeaders, answer)

    def _read(self, schema: type[Answer], data: bytes) -> Answer:
        try:
            return parse(schema, data)
        except InputInvalid as error:
            cause = error.unquoted.rstrip(".")
            message = f"{self._server} returned no signed headers ({cause}); its version may be different"
        raise StorageServerUnavailable(message)

    def _post(self, path: str, body: Schema, what: str) -> bytes:
        """Send a request to the server and return the response. `what` describes it in errors. Raises AccessDenied,
        StorageServerUnavailable.
        """
        try:
            token = self._token_file.read_text("utf-8").strip()
        except OSError as error:
            message = f"the token for rlrun-server cannot be read from {self._token_file}: {error}"
            raise StorageServerUnavailable(message) from error
        text, sent = json.dumps(body.to_json_dict()), {**bearer(token), "Content-Type": "application/json"}
        try:
            response = self._http.request("POST", self._server + path, body=text, headers=sent)
        except HTTPError as error:
            raise StorageServerUnavailable(
                f"rlrun-server does not respond at {self._server} ({_cause(error)}): the request to S3 is retried. "
                f"Check the Deployment of rlrun-server, and that NetworkPolicies allow this pod to reach it"
            ) from error
        if response.status == 200:
            return bytes(response.data)
        raise _rejection(response.status, response.data, what)


def _key(request: RequestToSign) -> Hashable:
    return (request.method, request.url, *sorted(request.headers.items()))


def _trust(authority: str) -> ssl.SSLContext | None:
    """Return a TLS context that trusts only these certificates, or None for the certificates of the image."""
    if not authority:
        return None
    try:
        return ssl.create_default_context(cadata=authority)
    except ssl.SSLError as error:
        raise ValueError(f"{SERVER_AUTHORITY_VARIABLE} does not contain valid PEM certificates: {error}") from error


def _cause(error: HTTPError) -> str:
    """Describe the error briefly. An untrusted certificate is distinguished from a missing response."""
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, SSLError):
        return f"its certificate is not trusted: {reason}"
    return type(error).__name__


def _rejection(status: int, body: bytes, place: str) -> StoreError:
    try:
        problem = parse(Problem, body)
    except InputInvalid:
        problem = Problem(reason=Reason.S3_ERROR, message=f"it responded with {status}")
    message = f"rlrun-server does not sign {place}: {problem.message}"
    return StorageServerUnavailable(message) if status in TRANSIENT_STATUSES else AccessDenied(message)
