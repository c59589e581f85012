"""Tenants with a signature cannot use other files by headers that it does not cover, on any kind of S3 server."""

import io
import tarfile
from pathlib import Path

import pytest
import urllib3
from botocore.awsrequest import AWSRequest
from rlrun.api.base.s3_connection import S3Connection
from rlrun.protocol.storage_access import StorageRole
from rlrun.storage.layout import PROBE_FOLDER, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.remote_signer import RemoteSigner
from rlrun.storage.store import AccessDenied, AlreadyExists, NotImplementedByStore, Store
from rlrun_cli.remote.server import DirectServer

from tests.support.seaweedfs import S3Server
from tests.support.signed_s3 import AWS, BUCKET, COPY, EXTRACT, MINIO, OLD_CEPH, Dialect, signed_s3
from tests.support.signing_server import signing_server

RUN = S3Uri(BUCKET, "team/0123")
PACKAGE = "environments/team/echo/1.0/echo-1.0.whl"
OWNER = "environments/team/.owner"
"""Record of the owner's namespace, which these tests do not have."""


def archive(name: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        info = tarfile.TarInfo(name)
        info.size = 4
        file.addfile(info, io.BytesIO(b"evil"))
    return data.getvalue()


@pytest.mark.parametrize("dialect", [AWS, MINIO, OLD_CEPH], ids=["aws", "minio", "old-ceph"])
@pytest.mark.parametrize("header", [COPY, COPY.title(), EXTRACT, "x-amz-meta-other"])
def test_a_signed_put_reads_and_writes_no_other_key(dialect: Dialect, header: str, tmp_path: Path) -> None:
    with signed_s3(dialect) as s3, signing_server(s3.server, tmp_path) as server:
        s3.objects |= {"other/secret": b"secret", "models/m": b"good"}
        signer = RemoteSigner.from_environment(server.variables(StorageRole.orchestrator, str(RUN)), "us-east-1")
        assert signer
        body = b"" if header.lower() == COPY else archive("models/m")
        url = f"{s3.server.endpoint}/{BUCKET}/{RUN.key}/metrics/x"
        request = AWSRequest("PUT", url, data=body)
        if dialect is OLD_CEPH:
            with pytest.raises(AccessDenied, match="cannot isolate tenants"):
                signer.sign(request)
        else:
            signer.sign(request)
            unsigned = {header: "true" if header == EXTRACT else f"/{BUCKET}/other/secret"}
            sent = {**dict(request.headers.items()), **unsigned}
            assert urllib3.request("PUT", request.url, headers=sent, body=body, retries=False).status == 403
        assert s3.objects == {"other/secret": b"secret", "models/m": b"good"}


@pytest.mark.parametrize("dialect", [AWS, MINIO], ids=["aws", "minio"])
def test_processes_and_users_work_with_the_method_of_the_server(dialect: Dialect, tmp_path: Path) -> None:
    with signed_s3(dialect) as s3, signing_server(s3.server, tmp_path) as server:
        trainer = server.store(StorageRole.trainer, str(RUN))
        place = RUN / "policy/v000001-abc"
        manifest = trainer.upload_artifact({"w~+1": b"1"}, place, ArtifactKind.policy)
        assert trainer.download(place, tmp_path / "back") == manifest
        assert trainer.list_files(place) != []
        assert trainer.delete_prefix(place) == 2
        package = S3Uri(BUCKET, PACKAGE)
        user = server.user_store(server.user("ann", "create rlenvironments in team"))
        user.put_bytes(package, b"wheel", replace=False)
        with pytest.raises(AlreadyExists):
            user.put_bytes(package, b"other", replace=False)
        assert s3.objects == {PACKAGE: b"wheel", OWNER: b""}
        assert not any(PROBE_FOLDER in key for key in s3.objects)


def test_the_condition_of_a_query_signature_cannot_be_removed(tmp_path: Path) -> None:
    with signed_s3(MINIO) as s3, signing_server(s3.server, tmp_path) as server:
        s3.objects[PACKAGE] = b"first"
        user = server.user_store(server.user("ann", "create rlenvironments in team"))
        signer = user._signer
        assert signer
        request = AWSRequest(
            "PUT", f"{s3.server.endpoint}/{BUCKET}/{PACKAGE}", headers={"if-none-match": "*"}, data=b"2"
        )
        signer.sign(request)
        assert urllib3.request("PUT", request.url, body=b"2", retries=False).status == 403
        assert s3.objects[PACKAGE] == b"first"


@pytest.mark.parametrize("dialect", [AWS, MINIO], ids=["aws", "minio"])
def test_files_of_an_artifact_are_written_once_with_the_method_of_the_server(dialect: Dialect, tmp_path: Path) -> None:
    with signed_s3(dialect) as s3, signing_server(s3.server, tmp_path) as server:
        trainer = server.store(StorageRole.trainer, str(RUN))
        place = RUN / "checkpoints/step-000001"
        manifest = trainer.upload_artifact({"w": b"good"}, place, ArtifactKind.checkpoint, once=True)
        assert trainer.upload_artifact({"w": b"good"}, place, ArtifactKind.checkpoint, once=True) == manifest
        before = dict(s3.objects)
        for replace in (False, True):
            with pytest.raises(AlreadyExists):
                trainer.put_bytes(place / "w", b"evil", replace=replace)
        signer = trainer._signer
        assert signer
        for asked in ({}, {"if-none-match": "*"}):
            request = AWSRequest("PUT", f"{s3.server.endpoint}/{BUCKET}/{(place / 'w').key}", headers=asked, data=b"e")
            signer.sign(request)
            sent = {name: value for name, value in request.headers.items() if name.lower() != "if-none-match"}
            assert urllib3.request("PUT", request.url, headers=sent, body=b"e", retries=False).status == 403
        assert s3.objects == before


@pytest.mark.parametrize(("dialect", "says"), [(AWS, ""), (MINIO, ""), (OLD_CEPH, "an unsigned x-amz-copy-source")])
def test_doctor_names_a_server_for_which_nothing_is_signed(dialect: Dialect, says: str, tmp_path: Path) -> None:
    with signed_s3(dialect) as s3, signing_server(s3.server, tmp_path) as server:
        send = DirectServer(server.url, lambda: server.user("ann")).send
        problem = send("GET", "/rlrun/v1/storage", None)["problem"]
        assert (says in problem) if says else problem == ""


def test_seaweedfs_gets_signatures_in_headers(s3_server: S3Server, tmp_path: Path) -> None:
    with signing_server(s3_server, tmp_path) as server:
        signer = RemoteSigner.from_environment(server.variables(StorageRole.orchestrator, str(RUN)), "us-east-1")
        assert signer
        request = AWSRequest("PUT", f"{s3_server.endpoint}/{BUCKET}/{RUN.key}/metrics/x", data=b"")
        signer.sign(request)
        assert "authorization" in request.headers
        assert server.s3.store().list_files(S3Uri(s3_server.bucket, PROBE_FOLDER)) == []


def test_deletions_work_where_content_md5_is_needed() -> None:
    with signed_s3(Dialect(needs_content_md5=True)) as s3:
        store = Store(S3Connection(endpoint=s3.server.endpoint), access_key_id="key", secret_access_key="secret")
        store.put_bytes(RUN / "metrics/x", b"1")
        assert store.delete_prefix(RUN) == 1
        assert s3.objects == {}


def test_a_server_without_conditions_is_named() -> None:
    with signed_s3(Dialect(has_conditions=False)) as s3:
        store = Store(S3Connection(endpoint=s3.server.endpoint), access_key_id="key", secret_access_key="secret")
        with pytest.raises(NotImplementedByStore, match="does not support If-None-Match"):
            store.put_bytes(RUN / "metrics/x", b"1", replace=False)
        assert s3.objects == {}
