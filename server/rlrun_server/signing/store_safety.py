"""Decision how requests of tenants may be signed for this S3 server. Pure, but for the latest verdict.

A signature is for one tenant's object only if the server refuses headers that it does not cover: `x-amz-copy-source`
reads another object, and MinIO unpacks a tar with `x-amz-meta-snowball-auto-extract` to any keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rlrun.constants import Reason
from rlrun.protocol.storage_access import RequestToSign, SignedHeaders
from rlrun.service.errors import ProblemError

from rlrun_server.runtime.metrics import STORE_SIGNING
from rlrun_server.signing.signer import S3Signer

REFUSALS = frozenset({400, 401, 403, 501})
"""Statuses of a server that refuses a request because of its signature or a header."""
NOT_FOUND = 404
"""The server has looked for the copy source, so that it accepted the header."""


class SigningMethod(StrEnum):
    """Place of the signature, in the order of preference."""

    headers = "headers"
    query = "query"


class Attempt(StrEnum):
    """Request of the probe."""

    plain = "an ordinary PUT"
    copy = "an unsigned x-amz-copy-source"
    extract = "an unsigned x-amz-meta-snowball-auto-extract"
    metadata = "an unsigned x-amz-meta header"


Answers = Mapping[Attempt, int]
"""Status by attempt. 0: no response."""


@dataclass(frozen=True)
class SigningVerdict:
    """Method for requests of tenants. None: no request is signed, and `problem` says why."""

    method: SigningMethod | None
    problem: str = ""


class Inconclusive(Exception):
    """The answers do not say whether the server is safe. The message says why."""


def decide(answers: Mapping[SigningMethod, Answers]) -> SigningVerdict:
    """Return the first safe method. Raises Inconclusive if an answer that counts is missing."""
    problems = []
    for method in SigningMethod:
        accepted = [attempt for attempt in Attempt if _is_accepted(method, attempt, answers)]
        if Attempt.plain not in accepted:
            if method is SigningMethod.headers:
                raise Inconclusive(f"S3 refuses {Attempt.plain} with status {answers[method][Attempt.plain]}")
            problems.append(f"it refuses {Attempt.plain} signed in the URL")
        elif accepted == [Attempt.plain]:
            return SigningVerdict(method)
        else:
            problems.append(f"signed in {'the URL' if method is SigningMethod.query else method}, it accepts "
                            + " and ".join(accepted[1:]))  # fmt: skip
    return SigningVerdict(None, f"the S3 server cannot hold tenants apart: {'; '.join(problems)}")


def is_safe(method: SigningMethod, answers: Answers) -> bool:
    """Return whether the method works and nothing but the ordinary request is accepted. Raises Inconclusive."""
    return [a for a in Attempt if _is_accepted(method, a, {method: answers})] == [Attempt.plain]


def _is_accepted(method: SigningMethod, attempt: Attempt, answers: Mapping[SigningMethod, Answers]) -> bool:
    status = answers.get(method, {}).get(attempt, 0)
    if 200 <= status < 300 or (attempt is not Attempt.plain and status == NOT_FOUND):
        return True
    if status in REFUSALS:
        return False
    what = f"responds with {status}" if status else "does not respond"
    raise Inconclusive(f"S3 {what} to {attempt} signed in {method}")


class StoreSafety:
    """The latest verdict. Nothing is signed before the first one, and each counts until the next."""

    def __init__(self) -> None:
        self._verdict: SigningVerdict | None = None
        self._trouble = "the first test has not ended"
        self._show()

    @property
    def problem(self) -> str:
        """Reason why requests are not signed now, empty if they are."""
        if self._verdict is None:
            return f"rlrun-server does not know yet whether the S3 server is safe: {self._trouble}"
        return self._verdict.problem

    def record(self, verdict: SigningVerdict) -> None:
        """Use this verdict from now on."""
        self._verdict = verdict
        self._show()

    def record_trouble(self, trouble: str) -> None:
        """Remember why there is no new verdict. The earlier one stays."""
        self._trouble = trouble

    def sign(self, signer: S3Signer, asked: RequestToSign) -> SignedHeaders:
        """Return the signature of a tenant's request that is allowed. Raises ProblemError, CredentialsMissing."""
        method = self._verdict.method if self._verdict is not None else None
        if method is SigningMethod.headers:
            return SignedHeaders(headers=signer.sign(asked.method, asked.url, asked.headers))
        if method is SigningMethod.query:
            return SignedHeaders(headers={}, query=signer.sign_by_query(asked.method, asked.url, asked.headers))
        if self._verdict is None:
            raise ProblemError.of(
                503, Reason.STORAGE_SERVER_UNAVAILABLE, f"{self.problem}. The request may be repeated."
            )
        raise ProblemError.of(403, Reason.STORAGE_UNSAFE, f"{self.problem}. Ask the platform team.")

    def _show(self) -> None:
        now = "unknown" if self._verdict is None else self._verdict.method or "refused"
        for method in ("unknown", "refused", *SigningMethod):
            STORE_SIGNING.labels(method).set(method == now)
