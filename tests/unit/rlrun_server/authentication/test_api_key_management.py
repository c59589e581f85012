"""API keys: who makes them, what they open, and what ends them."""

import asyncio
import base64
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol.api_keys import KEY_PATH, KEYS_AUDIENCE, KEYS_PATH, MAX_DAYS, NewApiKey
from rlrun.protocol.storage_access import PAYLOAD_HASH
from rlrun.protocol.user_storage import USER_SIGN_PATH
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import AccessDenied, StoreError
from rlrun.storage.user_signer import read_location
from rlrun_cli.remote.api_keys import ApiKeys
from rlrun_cli.terminal.errors import CliError
from rlrun_server.authentication.api_key_management import MAX_KEYS, REQUESTS, ApiKeyManagement
from rlrun_server.authentication.api_key_store import KEPT_SECONDS, UNKNOWN_SECONDS, ApiKeyStore
from rlrun_server.authentication.identification import Identification
from rlrun_server.authentication.token_reviews import ACCEPTED_SECONDS
from rlrun_server.authentication.users import ALLOWED_SECONDS, Users
from rlrun_server.runtime.settings import ServerSettings

from tests.support.seaweedfs import S3Server
from tests.support.signing_server import (
    KEY_SECRET,
    PLATFORM_NAMESPACE,
    ReviewingApi,
    SigningServer,
    key_secret_id,
    signing_server,
    token_of,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MANAGE = "create serviceaccounts/token rlrun-user in"


class Times:
    """Both clocks of the server."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds - 100)


class Keys:
    """Management of keys against the API server of the tests, with one user who may do everything in `team`."""

    def __init__(self) -> None:
        self.api, self.times = ReviewingApi(), Times()
        self.store = ApiKeyStore(self.api, PLATFORM_NAMESPACE, KEY_SECRET, self.times.monotonic)
        self.users = Users(self.api.create, self.times.monotonic, self.store, self.times.now)
        identification = Identification(self.users, 1000, self.times.monotonic)
        self.management = ApiKeyManagement(identification, self.users, self.store, self.times.monotonic, self.times.now)
        self.api.add_account("team")
        self.api.users["ann's"] = "ann"
        self.api.permissions.add(("ann", f"{MANAGE} team"))

    async def create(
        self, days: int = 90, token: str = "ann's", namespace: str = "team", description: str = "CI"
    ) -> str:
        async def read() -> NewApiKey:
            return NewApiKey(days=days, description=description)

        made = await self.management.create(token, "1.2.3.4", namespace, read)
        return made.key

    async def name_of(self, key: str) -> str | None:
        user = await self.users.identify(key)
        return None if user is None else user.name

    def wait(self, seconds: float) -> None:
        self.times.seconds += seconds


@pytest.fixture
def keys() -> Keys:
    return Keys()


async def reason_of(call: Any) -> tuple[int, str]:
    with pytest.raises(ProblemError) as caught:
        await call
    return caught.value.status, caught.value.problem.reason


# --- who gets one -----------------------------------------------------------------------------------------------------


async def test_a_key_stands_for_the_account_of_its_namespace(keys: Keys) -> None:
    key = await keys.create()
    user = await keys.users.identify(key)
    assert user is not None
    assert user.name == "system:serviceaccount:team:rlrun-user"
    assert user.uid == "uid-of-account"
    assert set(user.groups) == {"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:team"}
    assert user.namespace == "team"


@pytest.mark.parametrize(
    ("namespace", "status"), [("other", 403), ("not-there", 403), ("..", 422), ("UPPER", 422), ("x" * 64, 422)]
)
async def test_who_may_not_create_tokens_of_the_account_manages_no_keys(
    keys: Keys, namespace: str, status: int
) -> None:
    keys.api.add_account("other")
    management = keys.management
    assert (await reason_of(keys.create(namespace=namespace)))[0] == status
    assert (await reason_of(management.list("ann's", "", namespace)))[0] == status
    assert (await reason_of(management.delete("ann's", "", namespace, "abc")))[0] == status
    assert (await reason_of(management.list("made up", "", "team")))[0] == 401


async def test_a_key_manages_no_keys(keys: Keys) -> None:
    key = await keys.create()
    keys.api.permissions.add(("system:serviceaccount:team:rlrun-user", f"{MANAGE} team"))
    assert await reason_of(keys.create(token=key)) == (403, "StorageAccessDenied")
    assert (await reason_of(keys.management.list(key, "", "team")))[0] == 403


async def test_a_namespace_without_the_account_has_no_keys(keys: Keys) -> None:
    del keys.api.objects["ServiceAccount", "team", "rlrun-user"]
    with pytest.raises(ProblemError, match="kubectl create serviceaccount rlrun-user -n team") as caught:
        await keys.create()
    assert (caught.value.status, caught.value.problem.reason) == (409, "ApiKeyAccountMissing")


async def test_a_namespace_has_a_limited_number_of_keys_and_those_that_ended_do_not_count(keys: Keys) -> None:
    for number in range(MAX_KEYS):
        keys.wait(1 / REQUESTS.per_second)
        await keys.create(days=1 if number else 2)
    keys.wait(1)
    keys.api.add_account("other")
    keys.api.permissions.add(("ann", f"{MANAGE} other"))
    await keys.create(namespace="other")
    keys.wait(1)
    assert await reason_of(keys.create()) == (409, "ApiKeyLimitReached")
    keys.wait(86400)
    await keys.create()
    assert len((await keys.management.list("ann's", "", "team")).keys) == 2


async def test_keys_that_are_made_at_once_are_all_stored_up_to_the_limit(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun_server.authentication.api_key_management.MAX_KEYS", 3)
    made = await asyncio.gather(*(keys.create() for _ in range(5)), return_exceptions=True)
    texts = [key for key in made if isinstance(key, str)]
    refused = [error.problem.reason for error in made if isinstance(error, ProblemError)]
    assert (len(texts), refused) == (3, ["ApiKeyLimitReached"] * 2)
    assert all([await keys.name_of(text) for text in texts])


async def test_all_namespaces_together_have_a_limit(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun_server.authentication.api_key_management.MAX_KEYS_OF_ALL", 1)
    await keys.create()
    keys.api.add_account("other")
    keys.api.permissions.add(("ann", f"{MANAGE} other"))
    assert await reason_of(keys.create(namespace="other")) == (409, "ApiKeyLimitReached")


async def test_keys_are_never_larger_than_the_secret_that_stores_them(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun_server.authentication.api_key_management.MAX_SECRET_BYTES", 1000)
    await keys.create()
    with pytest.raises(ProblemError, match="Shorten `description`") as caught:
        await keys.create(description="\N{GRINNING FACE}" * 200)
    assert (caught.value.status, caught.value.problem.reason) == (409, "ApiKeyLimitReached")
    await keys.create()
    stored = keys.api.objects["Secret", PLATFORM_NAMESPACE, KEY_SECRET]["data"]
    assert len(stored) == 2
    assert sum(len(base64.b64decode(entry)) for entry in stored.values()) <= 1000


async def test_a_token_of_the_account_manages_keys_only_if_it_is_made_for_it(keys: Keys) -> None:
    account = "system:serviceaccount:team:rlrun-user"
    keys.api.users["its"] = account
    keys.api.permissions.add((account, f"{MANAGE} team"))
    with pytest.raises(ProblemError, match="has the audience rlrun/keys"):
        await keys.create(token="its")
    proof = token_of("team", KEYS_AUDIENCE, "rlrun-user")
    assert await keys.create(token=proof)
    assert (await keys.management.list(proof, "", "team")).keys[0].owner == account
    for token in (token_of("other", KEYS_AUDIENCE, "rlrun-user"), token_of("team", KEYS_AUDIENCE, "default")):
        assert (await reason_of(keys.create(token=token)))[0] == 401
    assert (await reason_of(keys.create(token=token_of("team", "rlrun/uid/trainer", "rlrun-user"))))[0] == 401


async def test_keys_that_are_turned_off_are_refused_with_the_value_to_change(keys: Keys) -> None:
    management = ApiKeyManagement(
        Identification(keys.users, 1000, keys.times.monotonic), keys.users, None, keys.times.monotonic, keys.times.now
    )
    with pytest.raises(ProblemError, match=r"users\.apiKeys=false"):
        await management.list("ann's", "", "team")


async def test_without_its_secret_the_server_says_so(keys: Keys) -> None:
    del keys.api.objects[key_secret_id()]
    with pytest.raises(ProblemError, match=r"Secret platform/rlrun-server-api-keys for API keys does not exist"):
        await keys.create()


async def test_one_namespace_cannot_ask_for_lists_without_end(keys: Keys) -> None:
    for _ in range(int(REQUESTS.burst)):
        await keys.management.list("ann's", "", "team")
    assert (await reason_of(keys.management.list("ann's", "", "team")))[0] == 429
    keys.wait(1)
    await keys.management.list("ann's", "", "team")


# --- what ends one ----------------------------------------------------------------------------------------------------


async def test_a_key_ends_at_its_time(keys: Keys) -> None:
    key = await keys.create(days=1)
    keys.wait(86400 - 1)
    assert await keys.name_of(key)
    keys.wait(ALLOWED_SECONDS)
    assert await keys.name_of(key) is None


async def test_a_deleted_key_ends_within_seconds(keys: Keys) -> None:
    key, other = await keys.create(), await keys.create()
    assert await keys.name_of(key)
    key_id = key.split("_")[1]
    assert (await keys.management.delete("ann's", "", "team", key_id)).id == key_id
    keys.wait(ALLOWED_SECONDS)
    assert await keys.name_of(key) is None
    assert await keys.name_of(other)
    assert await reason_of(keys.management.delete("ann's", "", "team", key_id)) == (404, "ApiKeyNotFound")


async def test_keys_of_other_namespaces_cannot_be_deleted(keys: Keys) -> None:
    keys.api.add_account("other")
    keys.api.permissions.add(("ann", f"{MANAGE} other"))
    key = await keys.create(namespace="other")
    assert (await reason_of(keys.management.delete("ann's", "", "team", key.split("_")[1])))[0] == 404
    assert await keys.name_of(key)


@pytest.mark.parametrize("uid", [None, "uid-of-another-account"])
async def test_a_key_ends_with_its_account(keys: Keys, uid: str | None) -> None:
    key = await keys.create()
    assert await keys.name_of(key)
    keys.api.objects.pop(("ServiceAccount", "team", "rlrun-user"))
    if uid:
        keys.api.add_account("team", uid=uid)
    keys.wait(ALLOWED_SECONDS)
    assert await keys.name_of(key) is None


async def test_wrong_keys_open_nothing(keys: Keys) -> None:
    key = await keys.create()
    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    for text in (wrong, "rlk_" + "a" * 12 + "_" + "a" * 43, "rlk_", key + "\n"):
        assert await keys.name_of(text) is None
    assert await Users(keys.api.create, keys.times.monotonic).identify(key) is None


async def test_unknown_keys_cost_no_request_each(keys: Keys) -> None:
    await keys.create()
    keys.api.reads = keys.api.reviews = 0
    for number in range(200):
        text = f"rlk_{'a' * 12}_{number:043}"
        assert await keys.name_of(text) is None
    assert (keys.api.reads, keys.api.reviews) == (0, 0)
    keys.wait(KEPT_SECONDS)
    await asyncio.gather(*(keys.name_of(f"rlk_{'a' * 12}_{number:043}") for number in range(50)))
    assert keys.api.reads == 1


async def test_a_key_that_another_replica_made_or_deleted_is_seen(keys: Keys) -> None:
    other = Users(
        keys.api.create,
        keys.times.monotonic,
        ApiKeyStore(keys.api, PLATFORM_NAMESPACE, KEY_SECRET, keys.times.monotonic),
        keys.times.now,
    )
    assert await other.identify("rlk_" + "a" * 12 + "_" + "a" * 43) is None
    key = await keys.create()
    keys.wait(UNKNOWN_SECONDS)
    assert await other.identify(key)
    await keys.management.delete("ann's", "", "team", key.split("_")[1])
    keys.wait(KEPT_SECONDS)
    assert await other.identify(key) is None


async def test_new_credentials_of_an_address_are_limited_and_known_ones_are_not(keys: Keys) -> None:
    identification = Identification(keys.users, 1, keys.times.monotonic)
    key = await keys.create()
    assert (await identification.identify("ann's", "ingress")).name == "ann"

    async def status_of(token: str) -> int:
        return (await reason_of(identification.identify(token, "ingress")))[0]

    seen = [await status_of(f"made up {number}") for number in range(20)]
    assert seen.count(429) > 5
    keys.wait(ACCEPTED_SECONDS / 2)
    assert [await status_of(f"made up again {number}") for number in range(40)].count(429) > 5
    keys.wait(ACCEPTED_SECONDS / 2 + 1)
    for number in range(20):
        await status_of(f"and again {number}")
    assert (await identification.identify("ann's", "ingress")).name == "ann"
    assert (await identification.identify(key, "ingress")).api_key


async def test_the_use_of_a_key_is_in_the_log_once_an_hour(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    identification = Identification(keys.users, 1, keys.times.monotonic)
    key = await keys.create()
    for _ in range(3):
        await identification.identify(key, "")
    keys.wait(3600)
    await identification.identify(key, "")
    lines = [record.getMessage() for record in caplog.records if "was used" in record.getMessage()]
    assert lines == [f"API key {key.split('_')[1]} of namespace team was used"] * 2
    assert key[17:] not in caplog.text


# --- through the server -----------------------------------------------------------------------------------------------


@pytest.fixture
def server(s3_server: S3Server, tmp_path: Path) -> Iterator[SigningServer]:
    settings = ServerSettings(prefix="platform", environment_owners={"acme": ["team-a"]})
    with signing_server(s3_server, tmp_path, settings) as running:
        yield running


def made_key(server: SigningServer, namespace: str, *permissions: str) -> str:
    """Return a key of a namespace whose account has these permissions."""
    server.api.add_account(namespace)
    server.api.permissions |= {(f"system:serviceaccount:{namespace}:rlrun-user", what) for what in permissions}
    user = server.user(f"admin-of-{namespace}", f"{MANAGE} {namespace}")
    return ApiKeys(server.send_as(user), namespace).create(NewApiKey()).key


def test_a_key_opens_what_its_account_may(server: SigningServer, s3_server: S3Server) -> None:
    team, other = (f"team-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for namespace in (team, other):
        s3_server.store().put_bytes(S3Uri(s3_server.bucket, f"platform/{namespace}/uid-1/metrics/x"), b"data")
    key = made_key(server, team, f"get rlruns/metrics in {team}")
    store = server.user_store(key, team)
    assert store.get_bytes(S3Uri(s3_server.bucket, f"platform/{team}/uid-1/metrics/x")) == b"data"
    with pytest.raises(AccessDenied, match="may not get rlruns/metrics"):
        store.get_bytes(S3Uri(s3_server.bucket, f"platform/{other}/uid-1/metrics/x"))
    with pytest.raises(CliError, match="does not exist or has expired"):
        read_location(server.send_as(key[:-2] + "xx"))


def test_a_key_pushes_packages_of_an_owner_of_its_namespace(server: SigningServer, s3_server: S3Server) -> None:
    key = made_key(server, "team-a", "create rlenvironments in team-a")
    name = f"platform/environments/acme/{uuid.uuid4().hex[:8]}/1.0/x.whl"
    server.user_store(key, namespace="").put_bytes(S3Uri(s3_server.bucket, name), b"wheel", replace=False)
    with pytest.raises(AccessDenied):
        server.user_store(key, namespace="team-b").put_bytes(S3Uri(s3_server.bucket, name + "2"), b"w", replace=False)


def test_a_command_of_the_first_version_deletes_a_key(server: SigningServer) -> None:
    key = made_key(server, "team")
    path = KEY_PATH.format(namespace="team", id=key.split("_")[1])
    answer = server.send_as(server.user("bob", f"{MANAGE} team"))("DELETE", path, None)
    assert answer["id"] == key.split("_")[1]


def test_requests_out_of_bounds_are_refused_before_anything_is_stored(server: SigningServer) -> None:
    user = server.user("ann", f"{MANAGE} team")
    server.api.add_account("team")
    wrong = ("x" * 201, "two\nlines", "\x1b[31m")
    for body in ({"days": 0}, {"days": MAX_DAYS + 1}, *({"description": text} for text in wrong), {"else": 1}):
        with pytest.raises(StoreError, match="is not a valid NewApiKey"):
            server.send_as(user)("POST", KEYS_PATH.format(namespace="team"), body)
    assert "data" not in server.api.objects[key_secret_id()]


def test_a_user_writes_no_lines_of_its_own_into_the_log(
    server: SigningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    url = f"{server.s3.endpoint}/{server.s3.bucket}/platform/team/uid-1/metrics/x"
    headers = {"x\nINFO user ann deleted API key": "", PAYLOAD_HASH: "UNSIGNED-PAYLOAD"}
    for asked in (
        {"method": "GET", "url": url, "headers": headers},
        {"method": "A\nB", "url": url, "headers": {PAYLOAD_HASH: "UNSIGNED-PAYLOAD"}},
        {"method": "GET", "url": url, "headers": {}, "namespace": "a\nINFO b"},
    ):
        with pytest.raises(StoreError):
            server.send_as(server.user("mallory"))("POST", USER_SIGN_PATH, asked)
    assert not [record for record in caplog.records if "\n" in record.getMessage()]


def test_value_of_a_key_is_in_no_list(server: SigningServer) -> None:
    key = made_key(server, "team")
    found = ApiKeys(server.send_as(server.user("admin-of-team")), "team").list()
    assert [info.id for info in found] == [key.split("_")[1]]
    assert key[17:] not in str(found)
    assert isinstance(found[0].expires, str)
