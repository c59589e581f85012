"""Chooses the method for signing tenants' requests to this S3 server, based only on the results of the tests so far.

A signature protects the objects of other tenants only if the server rejects headers that the signature does not cover:
`x-amz-copy-source` reads a different object, and MinIO unpacks a tar with `x-amz-meta-snowball-auto-extract` to any
keys.

Invariant: a tenant's request is signed only with a method that a complete test has found safe. After the first unsafe
result, signing continues for at most UNCONFIRMED_TESTS further tests, so that one odd response does not stop the
platform; SAFE_TESTS consecutive safe results overrule the unsafe one. If a server becomes unsafe, tenants can exploit
this until the next test has a result (PERIOD_SECONDS, unless the server is too busy to respond), and during the further
tests. The reasons:

- A single safe result proves nothing: servers of two versions may share an address, and a tenant can repeat a request
  until it reaches the unsafe one. Signing stops after UNSAFE_TESTS unsafe results.
- A test without a result proves nothing either: a tenant could keep an unsafe server busy.
- Before the first safe result, one unsafe result is enough to refuse signing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rlrun.constants import Reason
from rlrun.protocol.storage_access import RequestToSign, SignedHeaders
from rlrun.service.backoff import Backoff
from rlrun.service.errors import ProblemError

from rlrun_server.runtime.metrics import STORE_SIGNING
from rlrun_server.signing.signer import S3Signer

REFUSALS = frozenset({400, 401, 403, 501})
"""Statuses with which a server rejects a request because of its signature or a header."""
NOT_FOUND = 404
"""Status that shows that the server looked for the copy source, so it accepted the header."""

FIRST_RESULT_SECONDS = 30.0
"""Seconds after which rlrun-server is ready even without a first result. Most of its routes work without S3."""
PERIOD_SECONDS = 3600.0
"""Pause in seconds after a safe test, if requests are signed and no unsafe result is unconfirmed."""
SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 30.0
"""Shortest and longest pause in seconds after any other test. The pause doubles while results are of the same kind."""
UNSAFE_TESTS = 3
"""Number of unsafe results after which signing stops."""
SAFE_TESTS = 3
"""Number of consecutive safe results that overrule an unsafe one."""
UNCONFIRMED_TESTS = 6
"""Maximum number of tests after an unsafe result before this result takes effect, unless it is overruled."""
SAFE = "safe"
"""Kind of the result of a test that found the server safe."""


class SigningMethod(StrEnum):
    """Part of a request that contains the signature, in order of preference."""

    headers = "headers"
    query = "query"


class ProbeRequest(StrEnum):
    """Kinds of requests that the probe sends."""

    plain = "an ordinary PUT"
    copy = "an unsigned x-amz-copy-source"
    extract = "an unsigned x-amz-meta-snowball-auto-extract"
    metadata = "an unsigned x-amz-meta header"


Answers = Mapping[ProbeRequest, int]
"""Status by request. 0 means no response."""


@dataclass(frozen=True)
class SigningVerdict:
    """Method for signing the requests of tenants. If `method` is None, no request is signed, and `problem` says why."""

    method: SigningMethod | None
    problem: str = ""
    lack: str = ""
    """Message about a feature that the platform needs and the S3 server lacks, or empty. It does not prevent signing.
    """


class Inconclusive(Exception):
    """Raised if the responses do not show whether the S3 server is safe. The message says why."""


class ProbeRefused(Inconclusive):
    """Raised if the S3 server or the settings prevent the test. An early retry does not help."""


def decide(answers: Mapping[SigningMethod, Answers]) -> SigningVerdict:
    """Return the verdict with the first safe signing method, if any. Raises Inconclusive if a required response is
    missing or unclear, and ProbeRefused if S3 rejects the plain request signed in headers.
    """
    problems = []
    for method in SigningMethod:
        accepted = [request for request in ProbeRequest if _is_accepted(method, request, answers)]
        if ProbeRequest.plain not in accepted:
            if method is SigningMethod.headers:
                raise ProbeRefused(f"S3 rejects {ProbeRequest.plain} with status {answers[method][ProbeRequest.plain]}")
            problems.append(f"when requests are signed in the URL, it rejects {ProbeRequest.plain}")
        elif accepted == [ProbeRequest.plain]:
            return SigningVerdict(method)
        else:
            problems.append(f"when requests are signed in {_place(method)}, it accepts {' and '.join(accepted[1:])}")
    return SigningVerdict(None, f"the S3 server cannot isolate tenants: {'; '.join(problems)}")


def is_safe(method: SigningMethod, answers: Answers) -> bool:
    """Return whether S3 accepts the plain probe request signed with this method and rejects all others.

    Raises Inconclusive if a response is missing or unclear.
    """
    return [a for a in ProbeRequest if _is_accepted(method, a, {method: answers})] == [ProbeRequest.plain]


def _is_accepted(method: SigningMethod, request: ProbeRequest, answers: Mapping[SigningMethod, Answers]) -> bool:
    status = answers.get(method, {}).get(request, 0)
    if 200 <= status < 300 or (request is not ProbeRequest.plain and status == NOT_FOUND):
        return True
    if status in REFUSALS:
        return False
    what = f"responds with {status}" if status else "does not respond"
    raise Inconclusive(f"S3 {what} to {request} signed in {_place(method)}")


def _place(method: SigningMethod) -> str:
    return "the URL" if method is SigningMethod.query else "headers"


@dataclass
class _UnconfirmedResult:
    """Unsafe result that further tests must confirm."""

    answer: SigningVerdict
    """Latest unsafe result."""
    unsafe: int = 0
    safe: int = 0
    """Number of consecutive safe results."""
    tests: int = 0


class StoreSafety:
    """Results of the tests so far, and the resulting method for signing the requests of tenants."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._has_result = False
        self._verdict: SigningVerdict | None = None
        self._unconfirmed: _UnconfirmedResult | None = None
        self._trouble = "the first test has not ended"
        self._alike: tuple[str, int] = ("", 0)
        """Kind of the latest result, and number of consecutive results of this kind."""
        self._show()

    @property
    def problem(self) -> str:
        """Reason why no requests are signed now, or an empty string."""
        if self._verdict is None:
            return f"rlrun-server does not know yet whether the S3 server is safe: {self._trouble}"
        return self._verdict.problem

    @property
    def shortcoming(self) -> str:
        """Reason why no requests are signed now, or else the feature that the S3 server lacks, or an empty string."""
        return self.problem or (self._verdict.lack if self._verdict is not None else "")

    @property
    def pause(self) -> float:
        """Seconds until the next test."""
        if self._alike[0] == SAFE and self._is_signing and self._unconfirmed is None:
            return PERIOD_SECONDS
        return Backoff(SHORTEST_SECONDS, LONGEST_SECONDS, self._alike[1]).pause

    def not_ready(self) -> str | None:
        """Return why rlrun-server is not ready for requests, or None if it is ready."""
        if self._has_result or self._clock() >= self._started + FIRST_RESULT_SECONDS:
            return None
        return self.problem

    def record(self, verdict: SigningVerdict) -> None:
        """Record the result of a test."""
        self._has_result = True
        is_safe = verdict.method is not None
        self._count(SAFE if is_safe else "unsafe")
        if not is_safe:
            unconfirmed = self._unconfirmed = self._unconfirmed or _UnconfirmedResult(verdict)
            unconfirmed.answer, unconfirmed.unsafe, unconfirmed.safe = verdict, unconfirmed.unsafe + 1, 0
            if not self._is_signing or unconfirmed.unsafe >= UNSAFE_TESTS:
                self._verdict = verdict
        else:
            if self._unconfirmed is not None:
                self._unconfirmed.safe += 1
                if self._unconfirmed.safe >= SAFE_TESTS:
                    self._unconfirmed = None
            if self._unconfirmed is None or self._is_signing:
                self._verdict = verdict
        self._limit_unconfirmed()
        self._show()

    def record_trouble(self, trouble: str, *, is_refusal: bool = False) -> None:
        """Record a test without a result. `is_refusal` is True if the S3 server or the settings prevented it."""
        self._has_result |= is_refusal
        self._trouble = trouble
        self._count("refusal" if is_refusal else "no answer")
        self._limit_unconfirmed()
        self._show()

    def sign(self, signer: S3Signer, asked: RequestToSign) -> SignedHeaders:
        """Return the signature of a tenant's permitted request. Raises ProblemError, CredentialsMissing."""
        method = self._verdict.method if self._verdict is not None else None
        if method is SigningMethod.headers:
            return SignedHeaders(headers=signer.sign(asked.method, asked.url, asked.headers))
        if method is SigningMethod.query:
            return SignedHeaders(headers={}, query=signer.sign_by_query(asked.method, asked.url, asked.headers))
        if self._verdict is None:
            raise ProblemError.of(503, Reason.STORAGE_SERVER_UNAVAILABLE, f"{self.problem}. Retry the request.")
        raise ProblemError.of(403, Reason.STORAGE_UNSAFE, f"{self.problem}. Ask the platform team.")

    @property
    def _is_signing(self) -> bool:
        return self._verdict is not None and self._verdict.method is not None

    def _count(self, kind: str) -> None:
        self._alike = (kind, self._alike[1] + 1 if self._alike[0] == kind else 1)

    def _limit_unconfirmed(self) -> None:
        if self._unconfirmed is not None:
            self._unconfirmed.tests += 1
            if self._is_signing and self._unconfirmed.tests > UNCONFIRMED_TESTS:
                self._verdict = self._unconfirmed.answer

    def _show(self) -> None:
        now = "unknown" if self._verdict is None else self._verdict.method or "refused"
        for method in ("unknown", "refused", *SigningMethod):
            STORE_SIGNING.labels(method).set(method == now)
