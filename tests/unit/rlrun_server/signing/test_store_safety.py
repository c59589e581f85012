"""A verdict needs an answer to each attempt, and stays until the next one."""

import asyncio

import pytest
from rlrun.protocol.storage_access import PAYLOAD_HASH, RequestToSign
from rlrun.service.errors import ProblemError
from rlrun_server.signing.signer import S3Signer
from rlrun_server.signing.store_probe import PERIOD_SECONDS, RETRY_SECONDS, follow
from rlrun_server.signing.store_safety import (
    Answers,
    Attempt,
    Inconclusive,
    SigningMethod,
    SigningVerdict,
    StoreSafety,
    decide,
)

HEADERS, QUERY = SigningMethod.headers, SigningMethod.query
ASKED = RequestToSign(method="GET", url="http://s3/b/k", headers={PAYLOAD_HASH: "0" * 64})


def answers(plain: int, copy: int = 403, extract: int = 403, metadata: int = 403) -> Answers:
    return dict(zip(Attempt, (plain, copy, extract, metadata), strict=True))


@pytest.mark.parametrize(
    ("in_headers", "in_query", "method"),
    [
        (answers(200), None, HEADERS),
        (answers(200, 501, 400, 401), None, HEADERS),
        (answers(200, metadata=200), answers(200), QUERY),
        (answers(200, copy=200), answers(200), QUERY),
        (answers(200, copy=404), answers(200), QUERY),
        (answers(200, extract=204), answers(200), QUERY),
        (answers(200, copy=200), answers(200, copy=200), None),
        (answers(200, copy=200), answers(403), None),
    ],
)
def test_the_first_safe_method_is_used(
    in_headers: Answers, in_query: Answers | None, method: SigningMethod | None
) -> None:
    verdict = decide({HEADERS: in_headers} | ({QUERY: in_query} if in_query else {}))
    assert verdict.method is method
    assert bool(verdict.problem) is (method is None)


@pytest.mark.parametrize(
    "given",
    [
        {HEADERS: answers(0)},
        {HEADERS: answers(403)},
        {HEADERS: answers(200, copy=503)},
        {HEADERS: answers(200, metadata=0)},
        {HEADERS: answers(200, copy=307)},
        {HEADERS: answers(200, copy=200), QUERY: answers(200, copy=0)},
        {HEADERS: answers(200, copy=200)},
    ],
)
def test_a_slow_or_refusing_server_has_no_verdict(given: dict[SigningMethod, Answers]) -> None:
    with pytest.raises(Inconclusive):
        decide(given)


def test_nothing_is_signed_before_the_first_verdict_and_each_stays_until_the_next() -> None:
    async def scenario() -> None:
        safety, pauses = StoreSafety(), []
        signer = S3Signer("http://s3", None)
        signer._source._held, signer._source._held_at = Credentials, 1e12
        results = iter(
            [Inconclusive("slow"), SigningVerdict(HEADERS), Inconclusive("slow"), SigningVerdict(None, "unsafe")]
        )

        async def probe() -> SigningVerdict:
            result = next(results)
            if isinstance(result, Exception):
                raise result
            return result

        seen = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            try:
                safety.sign(signer, ASKED)
                seen.append(200)
            except ProblemError as error:
                seen.append(error.status)
            if len(pauses) == 4:
                raise asyncio.CancelledError

        with pytest.raises(ProblemError, match="does not know yet"):
            safety.sign(signer, ASKED)
        with pytest.raises(asyncio.CancelledError):
            await follow(probe, safety, sleep)
        assert seen == [503, 200, 200, 403]
        assert pauses == [RETRY_SECONDS, PERIOD_SECONDS, RETRY_SECONDS, RETRY_SECONDS]
        assert safety.problem == "unsafe"

    asyncio.run(scenario())


class Credentials:
    access_key, secret_key, token = "key", "secret", None
