"""A verdict needs an answer to each attempt, and one odd answer changes nothing."""

import asyncio

import pytest
from rlrun.api.base.s3_connection import S3Connection
from rlrun.protocol.storage_access import PAYLOAD_HASH, RequestToSign
from rlrun.service.errors import ProblemError
from rlrun_server.signing.signer import S3Signer
from rlrun_server.signing.store_probe import follow
from rlrun_server.signing.store_safety import (
    FIRST_RESULT_SECONDS,
    Answers,
    Inconclusive,
    ProbeRefused,
    ProbeRequest,
    SigningMethod,
    SigningVerdict,
    StoreSafety,
    decide,
)

HEADERS, QUERY = SigningMethod.headers, SigningMethod.query
ASKED = RequestToSign(method="GET", url="http://s3/b/k", headers={PAYLOAD_HASH: "0" * 64})


def answers(plain: int, copy: int = 403, extract: int = 403, metadata: int = 403) -> Answers:
    return dict(zip(ProbeRequest, (plain, copy, extract, metadata), strict=True))


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


SAFE, UNSAFE = SigningVerdict(HEADERS), SigningVerdict(None, "unsafe")
NO_ANSWER, REFUSED = Inconclusive("slow"), ProbeRefused("no bucket")
Result = SigningVerdict | Inconclusive


def statuses(*results: Result) -> list[tuple[int, float]]:
    """Return the status of a request after each of the results of tests, and the pause that follows."""

    async def scenario() -> list[tuple[int, float]]:
        safety, remaining = StoreSafety(lambda: 0.0), iter(results)
        signer = S3Signer(S3Connection(endpoint="http://s3"))
        signer._source._held, signer._source._held_at = Credentials, 1e12
        seen: list[tuple[int, float]] = []

        def status() -> int:
            try:
                safety.sign(signer, ASKED)
            except ProblemError as error:
                assert safety.problem
                return error.status
            assert safety.problem == ""
            return 200

        async def probe() -> SigningVerdict:
            result = next(remaining)
            if isinstance(result, Inconclusive):
                raise result
            return result

        async def sleep(seconds: float) -> None:
            seen.append((status(), seconds))
            if len(seen) == len(results):
                raise asyncio.CancelledError

        assert status() == 503
        with pytest.raises(asyncio.CancelledError):
            await follow(probe, safety, sleep)
        return seen

    return asyncio.run(scenario())


def test_nothing_is_signed_before_the_first_verdict_and_each_stays_until_the_next() -> None:
    assert statuses(NO_ANSWER, SAFE, NO_ANSWER, SAFE) == [(503, 2), (200, 3600), (200, 2), (200, 3600)]
    assert statuses(UNSAFE) == [(403, 2)]


def test_a_server_that_is_slow_or_throttles_at_the_start_is_tested_again_soon() -> None:
    soon = statuses(*[NO_ANSWER] * 7, SAFE)
    assert soon == [(503, 2), (503, 4), (503, 8), (503, 16), (503, 30), (503, 30), (503, 30), (200, 3600)]
    assert statuses(*[NO_ANSWER] * 2000)[-1] == (503, 30)


def test_one_odd_answer_does_not_stop_the_platform() -> None:
    found = statuses(SAFE, UNSAFE, SAFE, SAFE, SAFE, UNSAFE, SAFE)
    assert found == [(200, 3600), (200, 2), (200, 2), (200, 4), (200, 3600), (200, 2), (200, 2)]


def test_a_server_that_becomes_unsafe_gets_no_signatures_within_seconds() -> None:
    unsafe = statuses(SAFE, *[UNSAFE] * 7)
    assert unsafe == [(200, 3600), (200, 2), (200, 4), (403, 8), (403, 16), (403, 30), (403, 30), (403, 30)]


def test_servers_of_two_versions_behind_one_address_are_unsafe() -> None:
    mixed = statuses(SAFE, UNSAFE, SAFE, SAFE, UNSAFE, SAFE, UNSAFE)
    assert [status for status, _ in mixed] == [200, 200, 200, 200, 200, 200, 403]
    assert [status for status, _ in statuses(SAFE, UNSAFE, SAFE, UNSAFE, UNSAFE)] == [200, 200, 200, 200, 403]


def test_a_server_that_is_kept_busy_after_an_unsafe_answer_gets_no_signatures() -> None:
    busy = statuses(SAFE, UNSAFE, *[NO_ANSWER] * 6)
    assert busy == [(200, 3600), (200, 2), (200, 2), (200, 4), (200, 8), (200, 16), (200, 30), (403, 30)]
    now_and_then = statuses(SAFE, UNSAFE, SAFE, NO_ANSWER, SAFE, NO_ANSWER, NO_ANSWER, NO_ANSWER)
    assert [status for status, _ in now_and_then] == [200, 200, 200, 200, 200, 200, 200, 403]


def test_a_server_that_was_unsafe_is_used_after_safe_answers_in_a_row() -> None:
    mended = statuses(UNSAFE, UNSAFE, SAFE, SAFE, UNSAFE, SAFE, SAFE, SAFE)
    assert mended == [(403, 2), (403, 4), (403, 2), (403, 4), (403, 2), (403, 2), (403, 4), (200, 3600)]


def test_a_method_that_was_found_safe_in_doubt_is_used_at_once() -> None:
    signer = S3Signer(S3Connection(endpoint="http://s3"))
    signer._source._held, signer._source._held_at = Credentials, 1e12
    safety = StoreSafety(lambda: 0.0)
    for verdict in (SAFE, UNSAFE, SigningVerdict(QUERY)):
        safety.record(verdict)
    assert safety.sign(signer, ASKED).query


@pytest.mark.parametrize("first", [SAFE, SigningVerdict(QUERY), UNSAFE, REFUSED])
def test_the_server_is_ready_with_a_first_result_or_after_a_deadline(first: Result) -> None:
    now = [100.0]
    safety = StoreSafety(lambda: now[0])
    assert "the first test has not ended" in (safety.not_ready() or "")
    safety.record_trouble("slow")
    assert "slow" in (safety.not_ready() or "")
    now[0] += FIRST_RESULT_SECONDS - 0.1
    assert safety.not_ready()
    if isinstance(first, SigningVerdict):
        safety.record(first)
    else:
        safety.record_trouble(str(first), is_refusal=True)
    assert safety.not_ready() is None

    waiting = StoreSafety(lambda: now[0])
    assert waiting.not_ready()
    now[0] += FIRST_RESULT_SECONDS
    assert waiting.not_ready() is None


def test_a_refusal_of_an_ordinary_request_is_a_result() -> None:
    with pytest.raises(ProbeRefused):
        decide({HEADERS: answers(403)})
    for given in (answers(503), answers(0), answers(200, copy=503)):
        with pytest.raises(Inconclusive) as caught:
            decide({HEADERS: given})
        assert not isinstance(caught.value, ProbeRefused)


class Credentials:
    access_key, secret_key, token = "key", "secret", None
