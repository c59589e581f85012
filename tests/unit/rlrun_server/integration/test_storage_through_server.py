"""Processes without S3 credentials use S3 by signatures of rlrun-server, and only what their role may use."""

import asyncio
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import urllib3
from botocore.awsrequest import AWSRequest
from rlrun.api.base.schema import Schema
from rlrun.protocol import signed_text
from rlrun.protocol.storage_access import (
    SERVER_AUTHORITY_VARIABLE,
    SERVER_VARIABLE,
    SignBatchRequest,
    StorageGrant,
    StorageRole,
)
from rlrun.storage import remote_signer
from rlrun.storage.errors import StorageServerUnavailable, StoreError
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.remote_signer import RemoteSigner
from rlrun.storage.store import PART_BYTES, AccessDenied, AlreadyExists, ArtifactExists, NotFound, Store
from rlrun.storage.transfer import Outgoing
from rlrun_operator.runtime.server_certificate import make_certificate
from rlrun_orchestrator.inference.gateway.environment_packages import PackageMissing, PackageReader
from rlrun_orchestrator.inference.gateway.package_pins import PackageRef

from tests.support.seaweedfs import S3Server
from tests.support.signing_server import KEY, NAMESPACE, SigningServer, signing_server


@pytest.fixture
def server(s3_server: S3Server, tmp_path: Path) -> Iterator[SigningServer]:
    with signing_server(s3_server, tmp_path) as running:
        yield running


@pytest.fixture
def run(s3_server: S3Server) -> S3Uri:
    return S3Uri(s3_server.bucket, f"team/{uuid.uuid4().hex}")


def test_an_artifact_goes_up_and_down_in_parts(server: SigningServer, run: S3Uri, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "large.bin").write_bytes(os.urandom(PART_BYTES + 12345))
    (source / "small+1.txt").write_text("text")
    trainer = server.store(StorageRole.trainer, str(run))
    place = run / "checkpoints/step-000001"
    manifest = trainer.upload_artifact(source, place, ArtifactKind.checkpoint, step=1, once=True)
    assert trainer.list_folders(run / "checkpoints") == ["step-000001"]
    assert trainer.download(place, tmp_path / "back") == manifest
    assert (tmp_path / "back/large.bin").read_bytes() == (source / "large.bin").read_bytes()
    assert trainer.upload_artifact(source, place, ArtifactKind.checkpoint, step=1, once=True) == manifest
    (source / "small+1.txt").write_text("other")
    with pytest.raises(ArtifactExists):
        trainer.upload_artifact(source, place, ArtifactKind.checkpoint, step=1, once=True)
    # Policies are the run's own: other files replace them, manifest first.
    trainer.upload_artifact({"w": b"1"}, run / "policy/v1", ArtifactKind.policy)
    trainer.upload_artifact({"w": b"2"}, run / "policy/v1", ArtifactKind.policy)
    assert trainer.get_bytes(run / "policy/v1/w") == b"2"


@pytest.mark.parametrize("folder", ["checkpoints", "adapters"])
def test_a_trainer_replaces_and_deletes_no_file_of_an_artifact(
    server: SigningServer, run: S3Uri, store: Store, folder: str
) -> None:
    """By no request, one of an earlier version among them, which asks for no condition."""
    place = run / folder / "step-000001"
    trainer = server.store(StorageRole.trainer, str(run))
    files = {"large": os.urandom(PART_BYTES + 1), "small": b"good weights"}
    trainer.upload_artifact(files, place, ArtifactKind.checkpoint, once=True)
    before = {name: store.get_bytes(place / name) for name, _ in store.list_files(place)}
    for name in (*files, MANIFEST):
        for replace in (False, True):
            with pytest.raises(AlreadyExists):
                trainer.put_bytes(place / name, b"evil weights", replace=replace)
        with pytest.raises(AccessDenied, match="The trainer may not delete"):
            trainer._s3.delete_object(Bucket=place.bucket, Key=(place / name).key)
        for once in (False, True):
            with pytest.raises(AlreadyExists):
                trainer._transfer.upload([Outgoing(name, os.urandom(PART_BYTES + 1))], place, once=once)
    with pytest.raises(AccessDenied, match="The trainer may not delete"):
        trainer.upload_artifact({"small": b"evil weights"}, place, ArtifactKind.checkpoint)
    assert {name: store.get_bytes(place / name) for name, _ in store.list_files(place)} == before


def test_a_condition_is_signed_so_that_it_cannot_be_left_out(server: SigningServer, run: S3Uri, store: Store) -> None:
    signer = RemoteSigner.from_environment(server.variables(StorageRole.trainer, str(run)), "us-east-1")
    assert signer is not None
    url = f"{server.s3.endpoint}/{run.bucket}/{run.key}/adapters/step-000001/w"
    for asked in ({}, {"If-None-Match": "*"}):
        request = AWSRequest("PUT", url, headers=asked, data=b"")
        signer.sign(request)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "if-none-match"}
        assert len(headers) < len(request.headers)
        assert urllib3.request("PUT", url, headers=headers, body=b"", retries=False).status == 403
    with pytest.raises(NotFound):
        store.get_bytes(run / "adapters/step-000001/w")


def test_an_interrupted_upload_is_made_again_with_other_weights(
    server: SigningServer, run: S3Uri, store: Store, tmp_path: Path
) -> None:
    """A trainer that restarts computes other bytes for the same step, and may delete nothing."""
    place = run / "checkpoints/step-000001"
    for name in ("large", "small"):
        store.put_bytes(place / name, b"first life")
    files = {"large": os.urandom(PART_BYTES + 1), "small": b"second life", "more": b"3"}
    trainer = server.store(StorageRole.trainer, str(run))
    manifest = trainer.upload_artifact(files, place, ArtifactKind.checkpoint, once=True)
    assert trainer.upload_artifact(files, place, ArtifactKind.checkpoint, once=True) == manifest
    server.store(StorageRole.trainer, str(run)).download(place, tmp_path / "back")
    assert {name: (tmp_path / "back" / name).read_bytes() for name in files} == files
    assert trainer.is_complete(place)


def test_a_trainer_prunes_policies_and_recovery_copies_and_nothing_else(
    server: SigningServer, run: S3Uri, store: Store
) -> None:
    trainer = server.store(StorageRole.trainer, str(run))
    for place in (run / "policy/v000001-abc", run / "recovery/step-000001"):
        for weights in (b"1", b"2"):
            trainer.upload_artifact({"w": weights}, place, ArtifactKind.policy)
        assert trainer.delete_prefix(place) == 2
        assert store.list_files(place) == []
    trainer.upload_artifact({"w": b"1"}, run / "adapters/step-000001", ArtifactKind.adapter)
    with pytest.raises(AccessDenied, match="The trainer may not delete"):
        trainer.delete_prefix(run / "adapters/step-000001")


def test_other_roles_and_runs_are_refused(server: SigningServer, run: S3Uri, store: Store) -> None:
    other = S3Uri(run.bucket, "other-team/run")
    store.put_bytes(other / "metrics/part-0.jsonl", b"secret")
    store.put_bytes(run / "policy/v1/w", b"policy")
    orchestrator = server.store(StorageRole.orchestrator, str(run))
    orchestrator.put_bytes(run / "metrics/part-0.jsonl", b"{}")
    orchestrator.put_bytes(run / "run.json", b"{}")
    with pytest.raises(NotFound):
        orchestrator.get_bytes(run / "metrics/part-1.jsonl")
    for refused in (
        lambda: orchestrator.get_bytes(other / "metrics/part-0.jsonl"),
        lambda: orchestrator.put_bytes(run / "policy/v1/w", b"forged"),
        lambda: orchestrator.put_bytes(run / "logs/a", b"forged"),
        lambda: orchestrator.list_folders(other),
        lambda: orchestrator.list_folders(S3Uri(run.bucket, "")),
        lambda: orchestrator.get_bytes(S3Uri("another-bucket", "a")),
        lambda: orchestrator.get_bytes(run / "metrics/../../x"),
    ):
        with pytest.raises(AccessDenied, match="rlrun-server does not sign"):
            refused()
    inference = server.store(StorageRole.inference, str(run))
    assert inference.get_bytes(run / "policy/v1/w") == b"policy"
    with pytest.raises(AccessDenied):
        inference.put_bytes(run / "policy/v1/w", b"forged")


def held_grant(run: S3Uri, left: timedelta) -> str:
    """Return the grant with which a trainer of `pool-a` works for a run."""
    ends = datetime.now(UTC).replace(microsecond=0) + left
    content = StorageGrant(
        namespace=NAMESPACE, owner=run.key, role=StorageRole.trainer, folder=str(run), holder="pool-a", ends=ends
    )
    return signed_text.sign(content, KEY)


def test_the_stores_of_a_pools_trainer_have_one_token_and_the_grants_of_their_runs(
    server: SigningServer, run: S3Uri
) -> None:
    other = S3Uri(run.bucket, f"team/{uuid.uuid4().hex}")
    variables = server.variables(StorageRole.trainer, "", owner="pool-a")
    mine, others = (Store.of_process(variables) for _ in range(2))
    mine.use_grant(held_grant(run, timedelta(hours=1)))
    others.use_grant(held_grant(other, timedelta(hours=1)))
    mine.put_bytes(run / "policy/v1/w", b"mine")
    others.put_bytes(other / "policy/v1/w", b"others")
    with pytest.raises(AccessDenied, match="The trainer may not write"):
        mine.put_bytes(other / "policy/v1/w", b"forged")
    assert others.get_bytes(other / "policy/v1/w") == b"others"
    mine.use_grant(held_grant(run, timedelta(hours=-1)))
    with pytest.raises(StorageServerUnavailable, match="The grant expired at"):
        mine.get_bytes(run / "policy/v1/w")
    mine.use_grant(held_grant(run, timedelta(hours=2)))
    assert mine.get_bytes(run / "policy/v1/w") == b"mine"


def test_folders_of_others_are_read_if_the_grant_names_them(server: SigningServer, run: S3Uri, store: Store) -> None:
    other = S3Uri(run.bucket, "other-team/run/checkpoints/step-000004")
    store.upload_artifact({"w": b"1"}, other, ArtifactKind.checkpoint)
    trainer = server.store(StorageRole.trainer, str(run), str(other))
    assert trainer.read_manifest(other) is not None
    with pytest.raises(AccessDenied):
        trainer.put_bytes(other / MANIFEST, b"{}")
    with pytest.raises(AccessDenied):
        trainer.get_bytes(S3Uri(run.bucket, "other-team/run/checkpoints/step-0000040/w"))


def test_a_missing_package_is_reported_with_the_names_of_its_neighbours(
    server: SigningServer, run: S3Uri, store: Store
) -> None:
    root = S3Uri(run.bucket, "environments")
    wheel = root / "me/reverse-text/1.0/reverse_text-1.0-py3-none-any.whl"
    store.put_bytes(wheel, b"wheel")
    mine, misspelled = root / "me/revers-text", PackageRef.of("me/revers-text", None)
    orchestrator = server.store(StorageRole.orchestrator, str(run), str(mine), listable=str(root / "me"))
    packages = PackageReader(orchestrator, str(root), [misspelled])
    with pytest.raises(PackageMissing, match="similar packages: me/reverse-text"):
        asyncio.run(packages.tar("me", "revers-text", None))
    with pytest.raises(AccessDenied):
        orchestrator.get_bytes(wheel)
    blind = PackageReader(server.store(StorageRole.orchestrator, str(run), str(mine)), str(root), [misspelled])
    with pytest.raises(PackageMissing, match=r"is not in s3://\S+/environments; upload it"):
        asyncio.run(blind.tar("me", "revers-text", None))


@pytest.mark.parametrize("header", ["x-amz-copy-source", "X-Amz-Acl"])
def test_a_signature_is_for_its_headers_only(server: SigningServer, run: S3Uri, store: Store, header: str) -> None:
    secret = S3Uri(run.bucket, f"other-team/{uuid.uuid4().hex}")
    store.put_bytes(secret, b"secret")
    value = f"/{secret.bucket}/{secret.key}" if header == "x-amz-copy-source" else "public-read"
    signer = RemoteSigner.from_environment(server.variables(StorageRole.orchestrator, str(run)), "us-east-1")
    assert signer is not None
    url = f"{server.s3.endpoint}/{run.bucket}/{run.key}/metrics/x"
    with pytest.raises(AccessDenied, match="does not sign requests with"):
        signer.sign(AWSRequest("PUT", url, headers={header: value}, data=b""))
    request = AWSRequest("PUT", url, data=b"")
    signer.sign(request)
    headers = dict(request.headers.items())
    assert urllib3.request("PUT", url, headers={**headers, header: value}, body=b"", retries=False).status == 403
    with pytest.raises(NotFound):
        store.get_bytes(run / "metrics/x")
    assert urllib3.request("PUT", url, headers=headers, body=b"", retries=False).status == 200
    assert urllib3.request("DELETE", url, headers=headers, retries=False).status == 403


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are repeated at once."""
    monkeypatch.setattr(urllib3.Retry, "sleep", lambda *_: None)


def test_a_server_that_is_away_is_like_s3_that_is_away(server: SigningServer, run: S3Uri, no_pauses: None) -> None:
    variables = server.variables(StorageRole.orchestrator, str(run)) | {SERVER_VARIABLE: "http://127.0.0.1:9"}
    with pytest.raises(StorageServerUnavailable, match="rlrun-server does not respond"):
        Store.of_process(variables).put_bytes(run / "metrics/a", b"")
    server.api.is_away = True
    with pytest.raises(StorageServerUnavailable, match="API server could not check"):
        server.store(StorageRole.orchestrator, str(run)).put_bytes(run / "metrics/a", b"")


def test_requests_for_signatures_are_encrypted_for_a_server_that_is_known(
    s3_server: S3Server, tmp_path: Path, run: S3Uri, no_pauses: None
) -> None:
    certificate, another = (make_certificate("localhost", datetime.now(UTC)) for _ in range(2))
    with signing_server(s3_server, tmp_path, certificate=certificate) as server:
        server.store(StorageRole.orchestrator, str(run)).put_bytes(run / "metrics/a", b"1")
        variables = server.variables(StorageRole.orchestrator, str(run))
        for authority in (another["ca.crt"].decode(), ""):
            with pytest.raises(StorageServerUnavailable, match="its certificate is not trusted"):
                Store.of_process(variables | {SERVER_AUTHORITY_VARIABLE: authority}).put_bytes(run / "metrics/b", b"1")
        elsewhere = variables[SERVER_VARIABLE].replace("localhost", "127.0.0.1")
        with pytest.raises(StorageServerUnavailable, match="its certificate is not trusted"):
            Store.of_process(variables | {SERVER_VARIABLE: elsewhere}).put_bytes(run / "metrics/b", b"1")
        with pytest.raises(ValueError, match="RLRUN_STORAGE_SERVER_AUTHORITY does not contain valid PEM"):
            Store.of_process(variables | {SERVER_AUTHORITY_VARIABLE: "none"})
    assert s3_server.store().list_files(run) == [("metrics/a", 1)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests of all signers to rlrun-server."""
    found: list[str] = []
    post = RemoteSigner._post

    def counting(self: RemoteSigner, path: str, body: Schema, what: str) -> bytes:
        found.append(f"{len(body.requests)} requests" if isinstance(body, SignBatchRequest) else what)
        return post(self, path, body, what)

    monkeypatch.setattr(RemoteSigner, "_post", counting)
    return found


def test_a_download_needs_one_signature_for_the_manifest_and_one_request_for_all_files(
    server: SigningServer, run: S3Uri, tmp_path: Path, asked: list[str]
) -> None:
    trainer = server.store(StorageRole.trainer, str(run))
    place = run / "checkpoints/step-000001"
    trainer.upload_artifact({"large": os.urandom(3 * PART_BYTES + 1), "small": b"x"}, place, ArtifactKind.checkpoint)
    asked.clear()
    server.store(StorageRole.trainer, str(run)).download(place, tmp_path / "back")
    assert asked == [f"GET {server.s3.endpoint}/{place.bucket}/{place.key}/{MANIFEST}", "2 requests"]


def test_a_small_upload_is_one_request_for_signatures(
    server: SigningServer, run: S3Uri, tmp_path: Path, asked: list[str]
) -> None:
    trainer = server.store(StorageRole.trainer, str(run))
    files = {f"part-{number}+@=~,.bin": os.urandom(1000) for number in range(5)}
    manifest = trainer.upload_artifact(files, run / "adapters/step-000001", ArtifactKind.adapter, once=True)
    assert asked == ["7 requests"]
    trainer.download(run / "adapters/step-000001", tmp_path / "back", manifest)
    assert asked == ["7 requests", "5 requests"]
    for name, content in files.items():
        assert (tmp_path / "back" / name).read_bytes() == content


def test_an_artifact_without_files_is_downloaded(server: SigningServer, run: S3Uri, tmp_path: Path) -> None:
    place = run / "adapters/step-000001"
    trainer = server.store(StorageRole.trainer, str(run))
    manifest = trainer.upload_artifact({"w": b"1"}, place, ArtifactKind.adapter).model_copy(update={"files": []})
    assert trainer.download(place, tmp_path / "back", manifest) == manifest
    assert [file.name for file in (tmp_path / "back").iterdir()] == [MANIFEST]


def test_a_bucket_that_cannot_exist_is_an_error_of_s3(server: SigningServer, run: S3Uri) -> None:
    with pytest.raises(StoreError, match='Invalid bucket name "No Bucket"'):
        server.store(StorageRole.trainer, str(run)).upload_artifact(
            {"w": b"1"}, S3Uri("No Bucket", "adapters/step-000001"), ArtifactKind.adapter
        )


def test_what_a_batch_may_not_do_is_named(server: SigningServer, run: S3Uri, asked: list[str]) -> None:
    inference = server.store(StorageRole.inference, str(run))
    with pytest.raises(AccessDenied, match=r"does not sign PUT .*/policy/v1/w: The inference may not write"):
        inference.upload_artifact({"w": b"forged"}, run / "policy/v1", ArtifactKind.policy)
    assert asked[0] == "3 requests"


def test_a_server_without_batches_signs_one_request_at_a_time(
    server: SigningServer, run: S3Uri, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_signer, "SIGN_BATCH_PATH", "/storage/v1/unknown")
    trainer = server.store(StorageRole.trainer, str(run))
    trainer.upload_artifact({"w": b"1"}, run / "adapters/step-000001", ArtifactKind.adapter)
    assert len(asked) == 4
    assert trainer.download(run / "adapters/step-000001", tmp_path / "back").files
