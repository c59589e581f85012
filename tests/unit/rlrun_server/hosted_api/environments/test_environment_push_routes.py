"""A push by a hosted client: what is announced is what is stored, once."""

import base64
import hashlib
import io
import json
import zipfile
from typing import Any

import pytest
from httpx import Response
from rlrun.storage.errors import AccessDenied, NotImplementedByStore, StoreError, Unreachable
from rlrun.storage.layout import S3Uri, package_owner_record
from rlrun_server.hosted_api.environments import environment_push_routes, package_uploads
from rlrun_server.hosted_api.environments.environment_packages import MAX_WHEEL
from rlrun_server.hosted_api.environments.package_uploads import TICKET_SECONDS, PackageUploads, UploadTicket
from rlrun_server.signing.package_owners import NAMESPACE_SECONDS

from tests.support.hosted_api import KEY, HostedApi, hosted_api
from tests.support.rest_api import BUCKET

FILE = "reverse-1.0-py3-none-any.whl"
FOLDER = S3Uri(BUCKET, "prefix/environments/team/reverse/1.0")


def wheel(text: str = "code") -> bytes:
    """Return a wheel, the same bytes at any time: a ZipInfo has no clock."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("reverse.py"), text)
        archive.writestr(zipfile.ZipInfo("reverse-1.0.dist-info/METADATA"), "Name: reverse\n")
    return file.getvalue()


WHEEL = wheel()


@pytest.fixture
async def api() -> HostedApi:
    found = hosted_api({"acme": ["acme-*"]})
    await found.key()
    return found


def body(data: bytes = WHEEL, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    return {"content_hash": "c", "filename": FILE, "sha256": digest, "size": len(data), "semantic_version": "1.0",
            "metadata": {"description": ""}, "runtime_hint": "VERIFIERS_V0", **more}  # fmt: skip


async def resolve(api: HostedApi, **more: str) -> Response:
    return await api.client.post("/environmentshub/resolve", json={"name": "reverse", **more})


async def announce(api: HostedApi, **more: Any) -> Response:
    identity = (await resolve(api)).json()["data"]["id"]
    return await api.client.post(f"/environmentshub/{identity}/wheels", json=body(**more))


async def test_a_push_in_another_spelling_is_one_of_the_same_package_and_version(api: HostedApi) -> None:
    identity = (await resolve(api)).json()["data"]["id"]
    assert (await resolve(api, name="Reverse_")).json()["data"]["id"] == identity
    api.store.put_bytes(FOLDER / FILE, WHEEL)
    assert (await resolve(api, name="REVERSE")).json()["data"]["created"] is False
    same = (await announce(api, semantic_version="1.0.0")).json()["data"]
    assert same["upload_url"] is None
    other = await announce(api, data=wheel("other"), semantic_version="1.0.0")
    assert (other.status_code, "immutable" in other.json()["detail"]) == (409, True)


async def test_a_private_push_to_an_owner_with_public_packages_is_refused(api: HostedApi) -> None:
    answer = await resolve(api, visibility="private")
    assert answer.status_code == 400
    assert "Packages of team are public" in answer.json()["detail"]
    assert "runs.environmentOwners" in answer.json()["detail"]
    assert (await resolve(api, visibility="PUBLIC")).status_code == 200
    assert (await resolve(api, visibility="PRIVATE", owner_slug="acme")).status_code != 400, "its packages are private"


async def test_a_push(api: HostedApi) -> None:
    found = (await resolve(api)).json()["data"]
    assert (found["owner"], found["created"]) == ({"name": "team"}, True)
    place = f"/environmentshub/{found['id']}"
    announced = (await api.client.post(f"{place}/wheels", json=body())).json()["data"]
    early = await api.client.post(f"{place}/wheels/{announced['wheel_id']}/finalize")
    assert early.status_code == 409
    assert announced["upload_url"].startswith("http://server/api/v1/environmentshub/uploads/")
    del api.client.headers["Authorization"]
    assert (await api.client.put(announced["upload_url"], content=WHEEL)).status_code == 200
    assert api.store.get_bytes(FOLDER / FILE) == WHEEL
    await api.key()
    assert (await api.client.post(f"{place}/wheels/{announced['wheel_id']}/finalize")).json()["data"]["success"] is True
    source = body(b"tar", filename="reverse-1.0-c.tar.gz")
    archive = (await api.client.post(f"{place}/versions", json=source)).json()["data"]
    assert (await api.client.put(archive["upload_url"], content=b"other")).status_code == 422
    assert (await api.client.put(archive["upload_url"], content=b"tar")).status_code == 200
    assert (await api.client.post(f"{place}/versions/{archive['version_id']}/finalize")).json()["data"]["success"]
    record = package_owner_record(S3Uri(BUCKET, "prefix"), "team")
    assert {stored.key for stored in api.store.walk(S3Uri(BUCKET, "prefix"))} == {(FOLDER / FILE).key, record.key}
    assert (await resolve(api)).json()["data"]["created"] is False


async def test_a_version_is_written_once(api: HostedApi) -> None:
    first = (await announce(api)).json()["data"]["upload_url"]
    other = (await announce(api, data=wheel("other"))).json()["data"]["upload_url"]
    assert (await api.client.put(first, content=WHEEL)).status_code == 200
    assert (await api.client.put(first, content=WHEEL)).status_code == 200, "a repetition"
    refused = await api.client.put(other, content=wheel("other"))
    assert (refused.status_code, "content hash" in refused.json()["detail"]) == (409, True)
    assert "already exists" in (await announce(api, data=wheel("other"))).json()["detail"]
    assert (await announce(api)).json()["data"]["upload_url"] is None, "nothing to upload"
    added = await announce(api, filename="reverse-1.0-cp311-cp311-any.whl")
    assert (added.status_code, "content hash" in added.json()["detail"]) == (409, True), "runs would find it changed"
    assert api.store.get_bytes(FOLDER / FILE) == WHEEL


@pytest.mark.parametrize(
    ("data", "sent", "status"),
    [(WHEEL, wheel("edoc"), 422), (WHEEL, WHEEL + b"x", 413), (b"no zip", b"no zip", 422), (WHEEL, b"", 422)],
    ids=["another", "longer", "no-wheel", "nothing"],
)
async def test_only_the_announced_wheel_is_stored(api: HostedApi, data: bytes, sent: bytes, status: int) -> None:
    url = (await announce(api, data=data)).json()["data"]["upload_url"]
    answer = await api.client.put(url, content=sent)
    assert answer.status_code == status
    assert list(api.store.walk(FOLDER)) == []


async def test_tickets_end_and_cannot_be_made(api: HostedApi) -> None:
    url = (await announce(api)).json()["data"]["upload_url"]
    payload, _, signature = url.rpartition("/")[2].partition(".")
    forged = json.loads(base64.urlsafe_b64decode(payload + "=="))
    forged["owner"] = "other"
    changed = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode().rstrip("=")
    for ticket in ("x", f"{changed}.{signature}", payload):
        assert (await api.client.put(f"/environmentshub/uploads/{ticket}", content=WHEEL)).status_code == 404
    api.now += TICKET_SECONDS
    assert (await api.client.put(url, content=WHEEL)).status_code == 404


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"size": MAX_WHEEL + 1}, 413),
        ({"filename": "../x.whl"}, 422),
        ({"filename": "x.tar.gz"}, 422),
        ({"semantic_version": "../1"}, 422),
        ({"sha256": "x"}, 422),
        ({"size": -1}, 422),
    ],
    ids=str,
)
async def test_bad_announcements(api: HostedApi, more: dict[str, Any], status: int) -> None:
    assert (await announce(api, **more)).status_code == status


async def test_owners_belong_to_namespaces(api: HostedApi) -> None:
    other = await resolve(api, owner_slug="other")
    assert other.status_code == 404
    assert (await resolve(api, owner_slug="acme")).status_code == 403
    assert (await resolve(api, name="../up")).status_code == 404
    await api.key("acme-lab", "list rlruns in acme-lab", "create rlenvironments in acme-lab")
    assert (await resolve(api, owner_slug="acme")).json()["data"]["owner"] == {"name": "acme"}
    await api.key("viewers", "list rlruns in viewers", "get rlenvironments in viewers")
    assert (await resolve(api)).status_code == 403


@pytest.mark.parametrize(
    ("headers", "start"),
    [
        ({"X-Forwarded-Proto": "https"}, "https://server/api/v1/"),
        ({"X-Forwarded-Proto": "https, http", "X-Forwarded-Prefix": "/rl"}, "https://server/rl/api/v1/"),
        ({"X-Forwarded-Proto": "ftp", "X-Forwarded-Prefix": "//evil"}, "http://server/api/v1/"),
    ],
)
async def test_the_url_is_at_the_clients_address(api: HostedApi, headers: dict[str, str], start: str) -> None:
    api.client.headers.update(headers)
    assert (await announce(api)).json()["data"]["upload_url"].startswith(start)


async def test_uploads_at_the_same_time_are_bounded(api: HostedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_uploads, "WAIT_SECONDS", 0.05)
    url = (await announce(api)).json()["data"]["upload_url"]
    uploads = environment_push_routes.uploads_of(type("R", (), {"app": api.client._transport.app})())  # type: ignore
    async with uploads.place("team"):
        answer = await api.client.put(url, content=WHEEL)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert (await api.client.put(url, content=WHEEL)).status_code == 200


async def test_a_package_named_like_another_module_is_refused(api: HostedApi) -> None:
    identity = (await resolve(api, name="PyYAML")).json()["data"]["id"]
    assert (await api.client.post(f"/environmentshub/{identity}/wheels", json=body())).status_code == 200
    identity = (await resolve(api, name="yaml")).json()["data"]["id"]
    answer = await api.client.post(f"/environmentshub/{identity}/wheels", json=body())
    assert answer.status_code == 422
    assert "pods would import the module yaml of pyyaml" in answer.text


async def test_a_namespace_that_is_made_again_pushes_no_version_of_the_earlier_one(api: HostedApi) -> None:
    api.rest.api.add_namespace("team", "first")
    assert (await announce(api)).status_code == 200
    api.rest.api.add_namespace("team", "second")
    api.now += NAMESPACE_SECONDS
    answer = await resolve(api)
    assert answer.status_code == 403
    assert "deleted namespace with this name" in answer.text
    ticket = uploads_ticket(api)
    assert (await api.client.put(f"/environmentshub/uploads/{ticket}", content=WHEEL)).status_code == 403
    assert not api.store.list_files(FOLDER)


def uploads_ticket(api: HostedApi) -> str:
    """Return a ticket that was given to the earlier namespace."""
    wanted = {"kind": "wheel", "namespace": "team", "owner": "team", "name": "reverse", "version": "1.0", "file": FILE}
    claims = UploadTicket(**wanted, sha256=hashlib.sha256(WHEEL).hexdigest(), size=len(WHEEL), expires=api.now + 60)
    return PackageUploads(lambda: [KEY], lambda: api.now).sign(claims)


@pytest.mark.parametrize(
    ("failure", "status"),
    [(Unreachable("s3://b"), 503), (AccessDenied("s3://b"), 503), (NotImplementedByStore("s3://b"), 424)],
    ids=lambda value: type(value).__name__,
)
async def test_only_what_a_repetition_may_mend_is_to_be_repeated(
    api: HostedApi, failure: StoreError, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise failure

    monkeypatch.setattr(api.store, "get_range", fail)
    answer = await resolve(api)
    assert answer.status_code == status
    assert ("Retry the request later" in answer.json()["detail"]) is (status == 503)
    assert "s3://b" not in answer.text, "for the log only"
