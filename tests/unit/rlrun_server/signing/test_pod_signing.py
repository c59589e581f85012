"""Who gets a signature: grant, limits and token."""

from datetime import UTC, datetime, timedelta

import pytest
from rlrun.api.base.s3_connection import S3Connection
from rlrun.protocol import signed_text
from rlrun.protocol.storage_access import PAYLOAD_HASH, SignRequest, StorageGrant, StorageRole
from rlrun.service.errors import ProblemError
from rlrun.storage.remote_signer import TRANSIENT_STATUSES
from rlrun_server.authentication.token_reviews import ACCEPTED_SECONDS, TokenReviews
from rlrun_server.runtime.settings import ServerSettings
from rlrun_server.signing.pod_signing import Signing
from rlrun_server.signing.signer import S3Signer
from rlrun_server.signing.store_safety import SigningMethod, SigningVerdict, StoreSafety

from tests.support.signing_server import KEY, ReviewingApi, token_of

URL = "http://s3:8333/bucket/team/uid-1/metrics/part-0.jsonl"
POLICY_URL = URL.replace("/metrics/", "/policy/")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class WallClock:
    now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


@pytest.fixture
def api() -> ReviewingApi:
    return ReviewingApi()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def signing(api: ReviewingApi, clock: Clock, wall: WallClock, monkeypatch: pytest.MonkeyPatch) -> Signing:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    settings = ServerSettings(signatures_per_second=10, reviews_per_second=1)
    safety = StoreSafety(clock)
    safety.record(SigningVerdict(SigningMethod.headers))
    signer = S3Signer(S3Connection(endpoint="http://s3:8333"))
    return Signing(settings, signer, TokenReviews(api.create, clock), lambda: [KEY], clock, safety, wall)


def granted(
    namespace: str = "team", owner: str = "uid-1", role: StorageRole = StorageRole.orchestrator
) -> StorageGrant:
    return StorageGrant(namespace=namespace, owner=owner, role=role, folder=f"s3://bucket/{namespace}/{owner}")


def held(**changes: object) -> StorageGrant:
    """Return a grant that the pool `pool-a` holds for run `uid-1`."""
    grant = granted(role=StorageRole.trainer).model_copy(update={"holder": "pool-a", "ends": NOW + 2 * HOUR})
    return grant.model_copy(update=changes)


def asked(grant: StorageGrant, url: str = URL, key: bytes = KEY) -> SignRequest:
    return SignRequest(
        method="PUT", url=url, headers={PAYLOAD_HASH: "UNSIGNED-PAYLOAD"}, grant=signed_text.sign(grant, key)
    )


async def status_of(signing: Signing, token: str, request: SignRequest) -> int:
    try:
        await signing.sign(token, request.grant, [request])
    except ProblemError as error:
        return error.status
    return 200


async def test_a_token_must_be_of_the_granted_run_and_role(signing: Signing) -> None:
    grant = granted()
    good = token_of("team", grant.audience)
    (found,) = await signing.sign(good, asked(grant).grant, [asked(grant)])
    assert {"Authorization", "X-Amz-Date"} <= set(found.headers)
    for token in (
        "",
        "nonsense",
        token_of("other", grant.audience),
        token_of("team", granted(owner="uid-2").audience),
        token_of("team", granted(role=StorageRole.trainer).audience),
        token_of("team", "https://kubernetes.default.svc"),
    ):
        assert await status_of(signing, token, asked(grant)) == 401, token


async def test_a_held_grant_needs_the_token_of_its_holder(signing: Signing) -> None:
    request = asked(held(), POLICY_URL)
    assert await status_of(signing, token_of("team", "rlrun/pool-a/trainer"), request) == 200
    for token in (
        token_of("team", "rlrun/uid-1/trainer"),
        token_of("team", "rlrun/pool-b/trainer"),
        token_of("team", "rlrun/pool-a/inference"),
        token_of("team", "rlrun//trainer"),
        token_of("other", "rlrun/pool-a/trainer"),
    ):
        assert await status_of(signing, token, request) == 401, token


async def test_the_holder_gets_no_more_than_the_run(signing: Signing) -> None:
    token = token_of("team", "rlrun/pool-a/trainer")
    for url in (URL, POLICY_URL.replace("/uid-1/", "/uid-2/")):
        assert await status_of(signing, token, asked(held(), url)) == 403, url
    assert await status_of(signing, token, asked(held(holder="", ends=None), POLICY_URL)) == 401, "the run's own grant"


@pytest.mark.parametrize("holder", ["pool-a", ""])
@pytest.mark.parametrize(
    ("left", "status"),
    [
        (HOUR, 200),
        (SECOND, 200),
        (-59 * SECOND, 200),
        (-60 * SECOND, 401),
        (-HOUR, 401),
        (2 * HOUR + 60 * SECOND, 200),
        (2 * HOUR + 61 * SECOND, 401),
    ],
    ids=str,
)
async def test_a_grant_is_valid_until_its_end(
    signing: Signing, api: ReviewingApi, holder: str, left: timedelta, status: int
) -> None:
    grant = held(holder=holder, ends=NOW + left)
    assert await status_of(signing, token_of("team", grant.audience), asked(grant, POLICY_URL)) == status
    assert api.reviews == (status == 200)


async def test_a_renewed_grant_is_accepted_after_the_end_of_the_first_one(signing: Signing, wall: WallClock) -> None:
    token, first = token_of("team", held().audience), held()
    wall.now += 3 * HOUR
    with pytest.raises(ProblemError, match="TokenInvalid: The grant expired at 2026-01-01T14:00:00") as raised:
        await signing.sign(token, asked(first).grant, [asked(first, POLICY_URL)])
    assert raised.value.status in TRANSIENT_STATUSES
    assert await status_of(signing, token, asked(held(ends=wall.now + HOUR), POLICY_URL)) == 200


async def test_a_changed_held_grant_is_refused(signing: Signing, api: ReviewingApi) -> None:
    signature = signed_text.sign(held(), KEY).partition(".")[2]
    for change in ({"holder": "pool-b"}, {"holder": ""}, {"ends": NOW + HOUR}, {"owner": "uid-2"}):
        other = held(**change)
        text = f"{signed_text.sign(other, KEY).partition('.')[0]}.{signature}"
        request = asked(other, POLICY_URL).model_copy(update={"grant": text})
        assert await status_of(signing, token_of("team", other.audience), request) == 403, change
    assert api.reviews == 0


async def test_a_held_grant_without_an_end_is_refused(signing: Signing, api: ReviewingApi) -> None:
    endless = held(ends=None)
    assert await status_of(signing, token_of("team", endless.audience), asked(endless, POLICY_URL)) == 403
    assert api.reviews == 0


async def test_without_a_grant_nothing_is_reviewed(signing: Signing, api: ReviewingApi) -> None:
    grant = granted()
    for text in ("", "a.b", signed_text.sign(grant, b"another key of the tenant"), signed_text.sign(grant, KEY)[:-2]):
        request = asked(grant).model_copy(update={"grant": text})
        assert await status_of(signing, token_of("team", grant.audience), request) == 403
    assert api.reviews == 0


async def test_another_folder_is_refused(signing: Signing) -> None:
    grant = granted()
    url = URL.replace("/metrics/", "/policy/")
    assert await status_of(signing, token_of("team", grant.audience), asked(grant, url)) == 403


async def test_a_review_is_remembered_for_a_while(signing: Signing, api: ReviewingApi, clock: Clock) -> None:
    grant = granted()
    token = token_of("team", grant.audience)
    for _ in range(3):
        assert await status_of(signing, token, asked(grant)) == 200
    assert api.reviews == 1
    api.deleted.add(token)
    assert await status_of(signing, token, asked(grant)) == 200
    clock.now += ACCEPTED_SECONDS + 1
    assert await status_of(signing, token, asked(grant)) == 401
    assert api.reviews == 2


async def test_an_api_server_that_is_away_is_no_refusal(signing: Signing, api: ReviewingApi) -> None:
    grant = granted()
    api.is_away = True
    assert await status_of(signing, token_of("team", grant.audience), asked(grant)) == 503
    api.is_away = False
    assert await status_of(signing, token_of("team", grant.audience), asked(grant)) == 200


async def test_a_namespace_has_its_limits_and_others_have_theirs(signing: Signing, api: ReviewingApi) -> None:
    mine, other = granted(), granted("other", "uid-9")
    many = [await status_of(signing, f"token {n}", asked(mine)) for n in range(30)]
    assert many == [401] * 10 + [429] * 20
    assert api.reviews == 10
    url = URL.replace("team/uid-1", "other/uid-9")
    good = token_of("other", other.audience)
    signed = [await status_of(signing, good, asked(other, url)) for _ in range(50)]
    assert signed == [200] * 40 + [429] * 10


async def test_a_batch_with_one_request_that_is_not_allowed_is_refused(signing: Signing, api: ReviewingApi) -> None:
    grant = granted()
    token = token_of("team", grant.audience)
    mine = [asked(grant, URL.replace("part-0", f"part-{number}")) for number in range(3)]
    found = await signing.sign(token, mine[0].grant, mine)
    assert len({headers.headers["Authorization"] for headers in found}) == 3
    assert api.reviews == 1
    with pytest.raises(ProblemError, match="may not write") as raised:
        await signing.sign(token, mine[0].grant, [*mine, asked(grant, URL.replace("/metrics/", "/policy/"))])
    assert raised.value.status == 403


async def test_each_request_of_a_batch_counts(signing: Signing, clock: Clock) -> None:
    grant = granted()
    token = token_of("team", grant.audience)
    for _ in range(2):
        await signing.sign(token, asked(grant).grant, [asked(grant)] * 32)
    assert await status_of(signing, token, asked(grant)) == 429
    # 64 signatures at 10 a second, of which 40 may come at once.
    clock.now += 2.4
    assert await status_of(signing, token, asked(grant)) == 429
    clock.now += 0.2
    assert await status_of(signing, token, asked(grant)) == 200
