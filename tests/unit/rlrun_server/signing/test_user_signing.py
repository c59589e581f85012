"""Users without S3 credentials use S3 by signatures of rlrun-server, as far as the API server lets them."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from botocore.awsrequest import AWSRequest
from rlrun.protocol.storage_access import PAYLOAD_HASH
from rlrun.protocol.user_storage import LOCATION_PATH, USER_SIGN_PATH
from rlrun.storage.errors import (
    AlreadyExists,
    BucketMissing,
    NotImplementedByStore,
    StorageServerUnavailable,
    StoreError,
    Unreachable,
)
from rlrun.storage.layout import S3Uri, package_owner_record
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import PART_BYTES, AccessDenied
from rlrun.storage.user_signer import UserSigner, open_user_store, read_location
from rlrun_cli.terminal.errors import CliError
from rlrun_server.runtime.settings import ServerSettings

from tests.support.seaweedfs import S3Server
from tests.support.signing_server import SigningServer, signing_server

PREFIX = "platform"


@pytest.fixture
def server(s3_server: S3Server, tmp_path: Path) -> Iterator[SigningServer]:
    settings = ServerSettings(prefix=PREFIX, environment_owners={"acme": ["team-a", "acme-*"]})
    with signing_server(s3_server, tmp_path, settings) as running:
        yield running


@pytest.fixture
def team() -> str:
    return f"team-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def run(s3_server: S3Server, team: str) -> S3Uri:
    return S3Uri(s3_server.bucket, f"{PREFIX}/{team}/uid-1")


def test_each_folder_of_a_run_needs_its_permission(
    server: SigningServer, run: S3Uri, team: str, s3_server: S3Server
) -> None:
    files = {
        "metrics": ("metrics/part-1.jsonl", "get rlruns/metrics"),
        "rollouts": ("rollouts/step-000001.jsonl.zst", "get rlruns/rollouts"),
        "logs": ("logs/attempt-1/pod/c.log", "get rlruns/log"),
        "checkpoints": ("checkpoints/step-000001/w", "get rlcheckpoints/files"),
        "adapters": ("adapters/step-000001/w", "get rladapters/files"),
    }
    for name, _ in files.values():
        s3_server.store().put_bytes(run / name, b"data")
    for folder, (name, permission) in files.items():
        user = server.user_store(server.user(f"{folder}-of-{team}", f"{permission} in {team}"))
        assert user.get_bytes(run / name) == b"data"
        assert user.get_range(run / name, None, 3) == b"ata"
        assert user.list_files(run / folder) == [(name.removeprefix(f"{folder}/"), 4)]
        with pytest.raises(AccessDenied, match="may read but not change"):
            user.put_bytes(run / name, b"forged")
        for other, (its_name, its_permission) in files.items():
            if other != folder:
                with pytest.raises(AccessDenied, match=f"may not {its_permission} in namespace {team}"):
                    user.get_bytes(run / its_name)


def test_variables_of_aws_tools_do_not_count(
    server: SigningServer, run: S3Uri, team: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s3_server.store().put_bytes(run / "metrics/x", b"data")
    (tmp_path / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:9\nregion = nowhere\n")
    for name, value in {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "other",
        "AWS_SECRET_ACCESS_KEY": "other",
        "AWS_DEFAULT_REGION": "elsewhere",
        "AWS_PROFILE": "nobody",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }.items():
        monkeypatch.setenv(name, value)
    user = server.user_store(server.user(f"ann-of-{team}", f"get rlruns/metrics in {team}"))
    assert user.get_bytes(run / "metrics/x") == b"data"


def test_files_of_no_table_are_refused(server: SigningServer, run: S3Uri, team: str) -> None:
    everything = [f"{verb} {what} in {team}" for verb in ("get", "create", "delete") for what in ("rlruns", "")]
    user = server.user_store(server.user(f"admin-of-{team}", *everything, f"get rlruns/metrics in {team}"))
    for refused in (
        lambda: user.get_bytes(run / "run.json"),
        lambda: user.get_bytes(run / "policy/v1/w"),
        lambda: user.list_folders(run),
        lambda: user.list_folders(S3Uri(run.bucket, "")),
        lambda: user.get_bytes(S3Uri(run.bucket, f"{team}/uid-1/metrics/x")),
        lambda: user.get_bytes(S3Uri("another-bucket", f"{run.key}/metrics/x")),
        lambda: user.get_bytes(run / "metrics/../../x"),
        lambda: user.get_bytes(S3Uri(run.bucket, f"{PREFIX}/models/a/b/w")),
    ):
        with pytest.raises(AccessDenied, match="rlrun-server refused"):
            refused()


def test_a_namespace_that_is_not_there_looks_like_one_of_others(server: SigningServer, run: S3Uri, team: str) -> None:
    user = server.user_store(server.user("ann"))
    messages = []
    for namespace in (team, "not-there"):
        with pytest.raises(AccessDenied) as caught:
            user.get_bytes(S3Uri(run.bucket, f"{PREFIX}/{namespace}/uid-1/metrics/x"))
        messages.append(str(caught.value).replace(namespace, "NAMESPACE"))
    assert messages[0] == messages[1]


def test_who_has_no_valid_token_learns_nothing(server: SigningServer, run: S3Uri, team: str) -> None:
    pod = f"{team} rlrun/uid-1/trainer pod"
    for token in ("", "made-up", pod):
        with pytest.raises(CliError, match="does not accept the token"):
            read_location(server.send_as(token))
        with pytest.raises(CliError, match="does not accept the token"):
            UserSigner(server.send_as(token), "us-east-1", team).sign(AWSRequest("GET", "http://s3/x"))


def test_the_token_may_be_in_the_other_header(server: SigningServer, team: str) -> None:
    token = server.user(f"ann-of-{team}")
    answer = urllib3.request("GET", server.url + LOCATION_PATH, headers={"X-Rlrun-Token": token})
    assert answer.status == 200
    assert answer.json()["prefix"] == PREFIX


def test_a_version_of_a_package_is_written_once(server: SigningServer, team: str) -> None:
    bucket = server.s3.bucket
    file = S3Uri(bucket, f"{PREFIX}/environments/{team}/env/1.0/env-1.0-py3-none-any.whl")
    author = server.user_store(server.user(f"author-of-{team}", f"create rlenvironments in {team}"))
    author.put_bytes(file, b"one", replace=False)
    with pytest.raises(AlreadyExists):
        author.put_bytes(file, b"two", replace=False)
    with pytest.raises(AccessDenied, match="may not delete rlenvironments"):
        author.put_bytes(file, b"two")
    with pytest.raises(AccessDenied, match="may not delete rlenvironments"):
        author.delete_prefix(S3Uri(bucket, file.key.rpartition("/")[0]))
    reader = server.user_store(server.user(f"reader-of-{team}"))
    assert reader.get_bytes(file) == b"one", "packages of owners that are not listed are public"
    with pytest.raises(AccessDenied, match="may not create rlenvironments"):
        reader.put_bytes(file, b"two", replace=False)
    owner = server.user_store(server.user(f"owner-of-{team}", f"delete rlenvironments in {team}"))
    assert owner.delete_prefix(S3Uri(bucket, file.key.rpartition("/")[0])) == 1
    owner.put_bytes(file, b"two")


def test_a_namespace_that_is_made_again_does_not_inherit_the_packages_of_the_earlier_one(
    server: SigningServer, team: str, s3_server: S3Server
) -> None:
    server.api.add_namespace(team, "first")
    package = S3Uri(server.s3.bucket, f"{PREFIX}/environments/{team}/env")
    permissions = [f"{verb} rlenvironments in {team}" for verb in ("create", "delete")]
    user = server.user_store(server.user(f"admin-of-{team}", *permissions))
    user.put_bytes(package / "1.0/x.whl", b"first", replace=False)
    user.put_bytes(package / "1.1/x.whl", b"first", replace=False)
    server.api.add_namespace(team, "second")
    server.owners._uids._known.clear()  # as after NAMESPACE_SECONDS
    for change in (
        lambda: user.put_bytes(package / "1.2/x.whl", b"second", replace=False),
        lambda: user.put_bytes(package / "1.0/x.whl", b"second"),
        lambda: user.delete_prefix(package / "1.0"),
    ):
        with pytest.raises(AccessDenied, match="deleted namespace with this name"):
            change()
    assert user.get_bytes(package / "1.0/x.whl") == b"first"
    record = package_owner_record(S3Uri(server.s3.bucket, PREFIX), team)
    with pytest.raises(AccessDenied):
        user.put_bytes(record, b"second")
    assert s3_server.store().get_bytes(record) == b"first"


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Unreachable("no answer"), 503),
        (AccessDenied("the key is wrong"), 403),
        (BucketMissing("there is no bucket"), 403),
        (NotImplementedByStore("no If-None-Match"), 403),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_record_of_an_owner_that_no_repetition_reads_is_refused_with_the_reason(
    server: SigningServer, team: str, failure: StoreError, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise failure

    monkeypatch.setattr(server.owners._store, "get_range", fail)
    token = server.user(f"author-of-{team}", f"create rlenvironments in {team}")
    url = f"{server.s3.endpoint}/{server.s3.bucket}/{PREFIX}/environments/{team}/env/1.0/x.whl"
    headers = {"if-none-match": "*", PAYLOAD_HASH: "0" * 64}
    asked = {"method": "PUT", "url": url, "headers": headers, "namespace": team}
    answer = urllib3.request(
        "POST", server.url + USER_SIGN_PATH, json=asked, headers={"Authorization": f"Bearer {token}"}
    )
    assert (answer.status, answer.json()["reason"]) == (status, failure.reason)
    assert str(failure) in answer.json()["message"]


def test_the_condition_is_part_of_the_signature(server: SigningServer, team: str) -> None:
    token = server.user(f"author-of-{team}", f"create rlenvironments in {team}")
    url = f"{server.s3.endpoint}/{server.s3.bucket}/{PREFIX}/environments/{team}/env/1.0/x.whl"
    request = AWSRequest("PUT", url, data=b"1", headers={"If-None-Match": "*"})
    UserSigner(server.send_as(token), "us-east-1", team).sign(request)
    headers = dict(request.headers.items())
    without = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
    assert urllib3.request("PUT", url, headers=without, body=b"1", retries=False).status == 403
    assert urllib3.request("PUT", url, headers=headers, body=b"1", retries=False).status == 200
    assert urllib3.request("PUT", url, headers=headers, body=b"1", retries=False).status == 412


def test_a_listed_owner_is_for_its_namespaces(server: SigningServer, team: str) -> None:
    token = server.user(f"ann-of-{team}", f"create rlenvironments in acme-{team}", f"get rlenvironments in acme-{team}")
    file = S3Uri(server.s3.bucket, f"{PREFIX}/environments/acme/{team}/1.0/x.whl")
    inside = server.user_store(token, f"acme-{team}")
    inside.put_bytes(file, b"1", replace=False)
    assert inside.get_bytes(file) == b"1"
    with pytest.raises(AccessDenied, match="may not use the packages"):
        server.user_store(token, team).get_bytes(file)
    with pytest.raises(AccessDenied, match="may not get rlenvironments in namespace acme-other"):
        server.user_store(token, "acme-other").get_bytes(file)


def test_large_files_come_down_in_parts(
    server: SigningServer, run: S3Uri, team: str, s3_server: S3Server, tmp_path: Path
) -> None:
    content = bytes(range(256)) * (PART_BYTES // 256 + 1)
    place = run / "adapters/step-000001"
    s3_server.store().upload_artifact({"w": content}, place, ArtifactKind.adapter)
    user = server.user_store(server.user(f"ann-of-{team}", f"get rladapters/files in {team}"))
    user.download(place, tmp_path / "back")
    assert (tmp_path / "back/w").read_bytes() == content


def test_reviews_are_remembered_and_permissions_end(
    server: SigningServer, run: S3Uri, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    for part in (server.users._users._tokens, server.users._users._permissions):
        monkeypatch.setattr(part, "_clock", lambda: now[0])
    permission = (f"ann-of-{team}", f"get rlruns/metrics in {team}")
    token = server.user(*permission)
    send = server.send_as(token)
    location = read_location(send)

    def look() -> None:
        # A client of its own: each keeps the signatures of its reads for a while.
        open_user_store(send, location, team).list_files(run / "metrics")

    look()
    asked = server.api.reviews
    look()
    assert server.api.reviews == asked
    server.api.permissions.discard(permission)
    now[0] = 14.9
    look()
    now[0] = 15.1
    with pytest.raises(AccessDenied):
        look()
    server.api.permissions.add(permission)
    now[0] = 20.2
    look()
    del server.api.users[f"token-of-ann-of-{team}"]
    now[0] = 60.1
    with pytest.raises(CliError, match="does not accept the token"):
        look()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are repeated at once."""
    monkeypatch.setattr(urllib3.Retry, "sleep", lambda *_: None)


def test_one_user_cannot_take_the_server_from_others(s3_server: S3Server, tmp_path: Path, no_pauses: None) -> None:
    settings = ServerSettings(user_signatures_per_second=0.001)
    place = S3Uri(s3_server.bucket, "team/uid/metrics")
    with signing_server(s3_server, tmp_path, settings) as server:
        for name in ("ann", "ben"):
            signer = UserSigner(server.send_as(server.user(name)), "us-east-1", "")
            with pytest.raises(StorageServerUnavailable, match=f"User {name} exceeds the rate limit"):
                signer.sign(AWSRequest("GET", f"{s3_server.endpoint}/{place.bucket}/{place.key}/x"))


def test_without_the_api_server_nothing_is_signed(
    no_pauses: None, server: SigningServer, run: S3Uri, team: str
) -> None:
    token = server.user(f"ann-of-{team}", f"get rlruns/metrics in {team}")
    user = server.user_store(token)
    server.api.is_away = True
    with pytest.raises(StorageServerUnavailable, match="API server could not check"):
        user.list_files(run / "metrics")
