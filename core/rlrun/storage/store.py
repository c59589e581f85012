"""S3 client for objects and artifacts.

The client is synchronous and thread-safe (async code uses a thread pool). Every request has time limits (see
`RequestLimits`). The manifest of an artifact is written last and deleted first, so that a folder with a manifest is
complete at any time. A download is verified against the manifest and appears under its name atomically. By default, the
endpoint is read from the usual AWS_* variables. So are the credentials, unless rlrun-server signs the requests.
"""

import base64
import contextlib
import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from botocore import UNSIGNED
from botocore.exceptions import ClientError

from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.s3_connection import S3Connection
from rlrun.protocol.storage_access import MAX_BATCH
from rlrun.storage.boto_session import new_session, s3_client
from rlrun.storage.bucket_urls import BucketUrls, refuse_other_styles
from rlrun.storage.direct_requests import NO_BODY, REFUSED_STATUSES, DirectRequests, read_body
from rlrun.storage.errors import (
    MISSING_CREDENTIALS,
    NO_RESPONSE_ERRORS,
    AccessDenied,
    AlreadyExists,
    ArtifactChanged,
    ArtifactExists,
    BodyInterrupted,
    BucketMissing,
    Corrupt,
    NotAnAnswer,
    NotFound,
    NotImplementedByStore,
    ObjectTooLarge,
    S3Answer,
    StoreError,
    Unreachable,
    one_line,
    translate_s3_errors,
)
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import MAX_MANIFEST_BYTES, ArtifactKind, FileEntry, Manifest, StoredManifest
from rlrun.storage.remote_signer import RemoteSigner, RequestSigner
from rlrun.storage.transfer import CONCURRENCY, PART_BYTES, Incoming, Outgoing, Transfer, condition, size_of

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "ArtifactChanged",
    "ArtifactExists",
    "BodyInterrupted",
    "BucketMissing",
    "Corrupt",
    "NotFound",
    "NotImplementedByStore",
    "ObjectTooLarge",
    "RequestLimits",
    "Store",
    "StoreError",
    "StoredObject",
    "Unreachable",
    "Upload",
]

SMALL_BYTES = PART_BYTES
"""Maximum size in bytes of an artifact whose files are all read before the first request, so that all requests can be
signed together.
"""
MAX_OBJECT_BYTES = 256 * 1024**2
"""Default maximum size in bytes of an object that is read in one piece."""
RANGE_NOT_SATISFIABLE = 416
DELETE_BATCH = 250
"""Number of keys in one DeleteObjects request. S3 allows 1000, but a disk-based server responds only after it has
deleted all objects.
"""
DELETE_PIECE = 50_000
"""Maximum number of objects that are listed before they are deleted. It limits memory for large folders."""

LISTINGS = {"ListObjectsV2": b"ListBucketResult", "ListMultipartUploads": b"ListMultipartUploadsResult"}
"""Root element of the XML response, by listing operation."""
HEAD_BYTES = 1024
"""Number of bytes at the beginning of a response that are searched for the root element."""
CHECKSUM_HEADERS = ("x-amz-checksum-", "x-amz-sdk-checksum-")


@dataclass(frozen=True)
class RequestLimits:
    """Limits of one request."""

    connect_seconds: float = 5.0
    read_seconds: float = 60.0
    """Maximum seconds between two bytes of the response."""
    tries: int = 4


DEFAULT_LIMITS = RequestLimits()


@dataclass(frozen=True)
class StoredObject:
    """Object in a listing."""

    key: str
    size: int
    modified: datetime


@dataclass(frozen=True)
class Upload:
    """Unfinished multipart upload, whose parts use space but are not listed as objects."""

    key: str
    upload_id: str
    initiated: datetime


class Store:
    """S3 client for small objects, artifacts, listings and deletion. Methods that send requests raise StoreError."""

    _on_data: Callable[[], None] | None = None

    def __init__(
        self,
        connection: S3Connection | None = None,
        *,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        limits: RequestLimits = DEFAULT_LIMITS,
        signer: RequestSigner | None = None,
        use_environment: bool = True,
    ) -> None:
        """If `connection` is None, the connection is read from the variables of this process. If `use_environment` is
        False, the variables and files of AWS tools on this machine are ignored.
        """
        connection = connection or read_connection(os.environ if use_environment else {})
        session = new_session(use_environment=use_environment)
        self.endpoint = connection.service_name
        with translate_s3_errors("s3://", self.endpoint):
            self._s3: Any = s3_client(
                session,
                connection,
                access_key_id=access_key_id,
                secret_access_key=secret_access_key,
                session_token=session_token,
                connect_timeout=limits.connect_seconds,
                read_timeout=limits.read_seconds,
                retries={"mode": "standard", "total_max_attempts": limits.tries},
                max_pool_connections=4 * CONCURRENCY,
                # Not all servers know the newest checksum headers.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                signature_version=UNSIGNED if signer else None,
                ignore_configured_endpoint_urls=None if use_environment else True,
            )
        refuse_other_styles(self._s3, connection)
        self._s3.meta.events.register("before-parameter-build.s3", follow_no_redirect)
        self._s3.meta.events.register("after-call.s3", refuse_other_answers)
        self._s3.meta.events.register("before-sign.s3.DeleteObjects", use_content_md5)
        self._has_credentials = bool(signer or access_key_id) or session.get_credentials() is not None
        self._signer = signer
        self._direct: DirectRequests | None = None
        if signer is not None:
            self._s3.meta.events.register("request-created.s3", lambda request, **_: signer.sign(request))
            self._s3.meta.events.register("response-received.s3", forget_refused_signatures(signer))
            self._direct = DirectRequests(self._s3, BucketUrls(session, connection), signer)
        self._transfer = Transfer(self._s3, self.endpoint, self._direct)

    @classmethod
    def of_process(cls, environ: Mapping[str, str] = os.environ, limits: RequestLimits = DEFAULT_LIMITS) -> "Store":
        """Return the store for a process of a run. If the variables name an rlrun-server, it signs the S3 requests;
        otherwise boto3 finds the credentials. Raises StoreError if the connection is invalid, or ValueError if the CA
        certificates for rlrun-server are invalid.
        """
        connection = read_connection(environ)
        return cls(connection, limits=limits, signer=RemoteSigner.from_environment(environ, connection.region))

    @classmethod
    def from_variables(cls, variables: Mapping[str, str], limits: RequestLimits = DEFAULT_LIMITS) -> "Store":
        """Return a store with the connection and the AWS_* credentials in these variables. Raises StoreError."""
        return cls(
            read_connection(variables),
            access_key_id=variables.get("AWS_ACCESS_KEY_ID"),
            secret_access_key=variables.get("AWS_SECRET_ACCESS_KEY"),
            session_token=variables.get("AWS_SESSION_TOKEN"),
            limits=limits,
        )

    def require_credentials(self) -> None:
        """Check that there are credentials or a signing server. Raises AccessDenied."""
        if not self._has_credentials:
            raise AccessDenied(f"no S3 credentials for {self.endpoint}: {MISSING_CREDENTIALS}")

    def close(self) -> None:
        """Close the connections."""
        self._transfer.close()
        self._s3.close()
        if self._signer is not None:
            self._signer.close()

    def use_grant(self, grant: str) -> None:
        """Replace the signed StorageGrant that is sent to rlrun-server, if rlrun-server signs the requests."""
        if isinstance(self._signer, RemoteSigner):
            self._signer.grant = grant

    def watch_requests(
        self, before: Callable[[str], None], after: Callable[[], None], on_data: Callable[[], None] | None = None
    ) -> None:
        """Call `before` with the HTTP method before each request, including retries, and `after` after its response.

        `on_data` is called before and after each piece of an object's body, and may raise. All functions are called in
        the thread of the request. A request is not sent if `before` raises. Raises ValueError for a store whose
        requests rlrun-server signs, because not all of them can be watched.
        """
        if self._direct is not None:
            raise ValueError("requests that rlrun-server signs cannot be watched")

        def before_send(request: Any, **_: object) -> None:
            before(str(request.method))

        def on_response(exception: Exception | None, **_: object) -> None:
            if exception is None:
                after()

        self._on_data = on_data
        self._s3.meta.events.register("before-send.s3", before_send)
        self._s3.meta.events.register("response-received.s3", on_response)

    # --- objects ----------------------------------------------------------------------------------------------------

    def put_bytes(self, uri: S3Uri, data: bytes, *, replace: bool = True) -> None:
        """Write an object. If `replace` is false, raises AlreadyExists if it exists."""
        with translate_s3_errors(uri, self.endpoint):
            if self._direct is not None and self._direct.put(uri, data, once=not replace):
                return
            self._s3.put_object(Bucket=uri.bucket, Key=uri.key, Body=data, **condition(not replace))

    def delete_object(self, uri: S3Uri) -> None:
        """Delete one object, if it exists."""
        with translate_s3_errors(uri, self.endpoint):
            self._s3.delete_object(Bucket=uri.bucket, Key=uri.key)

    def get_bytes(self, uri: S3Uri, limit: int = MAX_OBJECT_BYTES) -> bytes:
        """Return the object's bytes. Raises NotFound, ObjectTooLarge if it exceeds `limit` bytes, BodyInterrupted."""
        with translate_s3_errors(uri, self.endpoint):
            data = self._direct.get(uri, limit) if self._direct is not None else None
            if data is not None:
                return data
            response = self._s3.get_object(Bucket=uri.bucket, Key=uri.key)
            body = response["Body"]
            if response["ContentLength"] > limit:
                body.close()
                raise ObjectTooLarge(uri, limit)
            try:
                return read_body(body, limit, uri, self._on_data)
            except NO_RESPONSE_ERRORS as error:
                raise BodyInterrupted(
                    f"the S3 endpoint {self.endpoint} sent only part of {uri} ({type(error).__name__}): the read is "
                    f"retried; if this happens repeatedly, check the S3 service"
                ) from error

    def get_range(self, uri: S3Uri, start: int | None, length: int) -> bytes:
        """Return up to `length` bytes of the object from byte `start`, or its last bytes if `start` is None. Raises
        NotFound.

        The result is empty for an empty object, or beyond the object's end.
        """
        asked = f"bytes=-{length}" if start is None else f"bytes={start}-{start + length - 1}"
        with translate_s3_errors(uri, self.endpoint):
            try:
                data: bytes = self._s3.get_object(Bucket=uri.bucket, Key=uri.key, Range=asked)["Body"].read(length)
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != RANGE_NOT_SATISFIABLE:
                    raise
                return b""
        return data

    # --- artifacts --------------------------------------------------------------------------------------------------

    def upload_artifact(
        self,
        source: Path | Mapping[str, bytes],
        uri: S3Uri,
        kind: ArtifactKind,
        *,
        created_at: datetime | None = None,
        run_name: str | None = None,
        run_uid: str | None = None,
        namespace: str | None = None,
        model: str | None = None,
        step: int | None = None,
        policy_version: int | None = None,
        details: Mapping[str, Any] | None = None,
        once: bool = False,
    ) -> Manifest:
        """Upload the files of a folder (or of a mapping of name to bytes), then the manifest that completes the
        artifact. Raises ValueError if `source` is not a folder or has no files.

        Uploading the same files with the same details again writes nothing and returns the first manifest. Different
        files replace the older files after the older manifest is deleted, so that no reader sees a mixture. If `once`
        is true, nothing is replaced or deleted: raises ArtifactExists if the folder contains a different complete
        artifact, and stores a file under a different name if an interrupted upload has left different content there.
        """
        description = Manifest(
            kind=kind,
            files=[],
            created_at=created_at or datetime.now(UTC),
            run_name=run_name,
            run_uid=run_uid,
            namespace=namespace,
            model=model,
            step=step,
            policy_version=policy_version,
            details=dict(details or {}),
        )
        return self.upload(source, uri, description, once=once)

    def upload(
        self, source: Path | Mapping[str, bytes], uri: S3Uri, manifest: Manifest, *, once: bool = False
    ) -> Manifest:
        """Upload like `upload_artifact`, with the details in `manifest`. If `manifest` lists files, they must be those
        of `source`.
        """
        files = _outgoing(source)
        if not files:
            raise ValueError(f"nothing to upload to {uri}: the source has no files")
        if self._signer is not None and sum(map(size_of, files)) <= SMALL_BYTES:
            files = [_read(file) for file in files]
            manifest = _complete(manifest, [file.entry for file in files if file.entry], uri)
            self._sign_upload_ahead(uri, manifest, once=once)
        try:
            older = self.read_manifest(uri)
            occupied = older is not None
        except Corrupt:
            older, occupied = None, True
        if older is not None:
            manifest = manifest if manifest.files else build_manifest(source, manifest)
            if older.has_content_of(manifest):
                return older
        if once:
            return self._upload_once(files, uri, manifest, occupied=occupied)
        if occupied:
            self.delete_object(uri / MANIFEST)
        self._abort_large_uploads(files, uri)
        manifest = _complete(manifest, self._transfer.upload(files, uri), uri)
        self.put_bytes(uri / MANIFEST, _text_of(manifest).encode())
        return manifest

    def _upload_once(self, files: list[Outgoing], uri: S3Uri, manifest: Manifest, *, occupied: bool) -> Manifest:
        if occupied:
            raise _artifact_exists(uri)
        self._abort_large_uploads(files, uri)
        try:
            # Check whether a large file exists before sending it.
            known = self._find_stored(files, uri) if sum(map(size_of, files)) > SMALL_BYTES else files
            entries = self._transfer.upload(known, uri, once=True)
        except AlreadyExists:
            # The file was stored although the response was lost, or is left from an interrupted upload.
            entries = self._transfer.upload(self._find_stored(files, uri), uri, once=True)
        manifest = _complete(manifest, entries, uri)
        try:
            self.put_bytes(uri / MANIFEST, _text_of(manifest).encode(), replace=False)
        except AlreadyExists as error:
            stored = self.read_manifest(uri)
            if stored is None or not stored.has_content_of(manifest):
                raise _artifact_exists(uri) from error
            return stored
        return manifest

    def _find_stored(self, files: Iterable[Outgoing], uri: S3Uri) -> list[Outgoing]:
        """Match the files with existing objects. Files whose names have different content in S3 get new names."""
        sizes = dict(self.list_files(uri))
        return [self._compare(file, uri, sizes) if file.name in sizes else file for file in files]

    def _compare(self, file: Outgoing, uri: S3Uri, sizes: Mapping[str, int]) -> Outgoing:
        entry = file.entry or _hash(file)
        for object_name in (None, f"{entry.name}.{entry.sha256[:16]}"):
            entry = entry.model_copy(update={"object_name": object_name})
            size = sizes.get(entry.stored_as)
            if size is None:
                return Outgoing(file.name, file.content, entry)
            if size == entry.size and self._transfer.digest(uri / entry.stored_as, size) == entry.sha256:
                return Outgoing(file.name, file.content, entry, is_stored=True)
        raise AlreadyExists(
            f"the content of {uri / entry.stored_as} does not match the digest in its name: delete the folder"
        )

    def read_manifest(self, uri: S3Uri, digest: str = "") -> Manifest | None:
        """Return the artifact's manifest, or None if it does not exist (yet).

        Raises Corrupt if it is invalid or too large, ArtifactChanged if its digest is not `digest`.
        """
        stored = self.read_stored_manifest(uri, digest)
        return None if stored is None else stored.content

    def read_stored_manifest(self, uri: S3Uri, digest: str = "") -> StoredManifest | None:
        """Return the manifest with its digest, like `read_manifest`."""
        try:
            text = self.get_bytes(uri / MANIFEST, MAX_MANIFEST_BYTES)
        except NotFound:
            return None
        found = hashlib.sha256(text).hexdigest()
        if digest and found != digest:
            raise ArtifactChanged(uri, digest, found)
        try:
            return StoredManifest(parse(Manifest, text, str(uri / MANIFEST)), found)
        except InputInvalid as error:
            message = f"{str(error).rstrip('.')}. Delete the folder or upload it again"
        raise Corrupt(message)

    def download(self, uri: S3Uri, dest: Path, manifest: Manifest | None = None, *, digest: str = "") -> Manifest:
        """Download an artifact to the folder `dest`, all or nothing, each file verified by size and SHA-256.

        `dest` is replaced by rename, so it must not be a mount point; its parent is created if missing. If `manifest`
        is given, the manifest is not read again; otherwise the manifest must have the digest `digest`, if given. Raises
        NotFound if there is no manifest, Corrupt if a file does not match it, ArtifactChanged if its digest differs.
        """
        manifest = manifest or self.read_manifest(uri, digest)
        if manifest is None:
            raise NotFound(f"{uri} has no {MANIFEST}: the upload is incomplete, or the URI is wrong")
        dest.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{dest.name}-", dir=dest.parent))
        try:
            files = [Incoming(entry, _path_of(entry, temporary, uri)) for entry in manifest.files]
            self._sign_ahead(("GET", uri / entry.stored_as, NO_BODY) for entry in manifest.files)
            for entry, found in zip(manifest.files, self._transfer.download(files, uri), strict=True):
                _check(entry, found, uri)
            (temporary / MANIFEST).write_text(_text_of(manifest), encoding="utf-8")
            temporary.chmod(0o755)
            _replace_folder(temporary, dest)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return manifest

    def is_complete(self, uri: S3Uri) -> bool:
        """Return whether the artifact has a manifest and all its files exist with their sizes. Raises Corrupt."""
        manifest = self.read_manifest(uri)
        if manifest is None:
            return False
        sizes = dict(self.list_files(uri))
        return all(sizes.get(entry.stored_as) == entry.size for entry in manifest.files)

    # --- folders ----------------------------------------------------------------------------------------------------

    def list_folders(self, uri: S3Uri) -> list[str]:
        """Return the sorted names of the folders directly below `uri`, without slashes."""
        prefix = _folder(uri)
        names: set[str] = set()
        with translate_s3_errors(uri, self.endpoint):
            for page in self._pages(uri.bucket, prefix, delimiter="/"):
                for item in page.get("CommonPrefixes", []):
                    names.add(str(item["Prefix"]).removeprefix(prefix).rstrip("/"))
        return sorted(names)

    def list_files(self, uri: S3Uri) -> list[tuple[str, int]]:
        """Return (name below `uri`, size in bytes) of every object at any depth, sorted by name."""
        prefix = _folder(uri)
        listed: list[tuple[str, int]] = []
        with translate_s3_errors(uri, self.endpoint):
            for page in self._pages(uri.bucket, prefix):
                listed += [(str(o["Key"]).removeprefix(prefix), int(o["Size"])) for o in page.get("Contents", [])]
        return sorted((name, size) for name, size in listed if name and not name.endswith("/"))

    def delete_prefix(self, uri: S3Uri, keep: Iterable[S3Uri] = ()) -> int:
        """Delete every object below the folder `uri`, manifests first, and abort unfinished uploads. Returns the number
        of deleted objects.

        Objects and uploads below the folders in `keep` are not touched. At most DELETE_PIECE objects are listed and
        deleted at a time, so that any folder can be deleted with little memory. In a larger folder, manifests are
        therefore deleted first only within each such portion. Raises ValueError for a whole bucket, whose deletion is
        never intended.
        """
        if not uri.key:
            raise ValueError(f"refusing to delete all of bucket {uri.bucket!r}: name a folder in it")
        prefix, kept = _folder(uri), tuple(map(_folder, keep))
        self._abort_uploads(uri, kept)
        deleted, last = 0, ""
        folders: set[str] = set()
        while True:
            with translate_s3_errors(uri, self.endpoint):
                pages = self._pages(uri.bucket, prefix, after=last)
                listed = (str(o["Key"]) for page in pages for o in page.get("Contents", []))
                keys = list(itertools.islice((key for key in listed if not key.startswith(kept)), DELETE_PIECE))
            manifests = [key for key in keys if key.rsplit("/", 1)[-1] == MANIFEST]
            others = [key for key in keys if key.rsplit("/", 1)[-1] != MANIFEST]
            # Servers on a file system (SeaweedFS, MinIO's gateway) keep empty folders until their key is deleted.
            folders |= {folder for key in keys for folder in _folders(prefix, key)}
            folders -= {folder for folder in folders if any(one.startswith(folder) for one in kept)}
            is_last = len(keys) < DELETE_PIECE
            # Folders of the last key may still have objects.
            unfinished = set() if is_last else folders.intersection(_folders(prefix, keys[-1]))
            empty = folders - unfinished
            depths = sorted({folder.count("/") for folder in empty}, reverse=True)
            rounds = [[folder for folder in empty if folder.count("/") == depth] for depth in depths]
            # Several requests, because the server chooses the order of deletion within one request.
            for group in (manifests, others, *rounds):
                for start in range(0, len(group), DELETE_BATCH):
                    self._delete(uri, group[start : start + DELETE_BATCH])
            deleted += len(keys)
            if is_last:
                return deleted
            last, folders = keys[-1], unfinished

    def walk(self, uri: S3Uri) -> Iterator[StoredObject]:
        """Yield every object below the folder `uri` at any depth, page by page, without keys that end with a slash."""
        return self._walk(uri, _folder(uri))

    def walk_prefix(self, uri: S3Uri) -> Iterator[StoredObject]:
        """Yield every object whose key begins with the key of `uri`, as `walk` does."""
        return self._walk(uri, uri.key)

    def _walk(self, uri: S3Uri, prefix: str) -> Iterator[StoredObject]:
        with translate_s3_errors(uri, self.endpoint):
            for page in self._pages(uri.bucket, prefix):
                for o in page.get("Contents", []):
                    if not str(o["Key"]).endswith("/"):
                        yield StoredObject(str(o["Key"]), int(o["Size"]), o["LastModified"])

    def uploads(self, uri: S3Uri, limit: int | None = None) -> list[Upload]:
        """Return the unfinished multipart uploads below the folder `uri`, at most `limit`."""
        with translate_s3_errors(uri, self.endpoint):
            pages = self._s3.get_paginator("list_multipart_uploads").paginate(Bucket=uri.bucket, Prefix=_folder(uri))
            found = itertools.islice((u for page in pages for u in page.get("Uploads", [])), limit)
            return [Upload(str(u["Key"]), str(u["UploadId"]), u["Initiated"]) for u in found]

    def abort_upload(self, bucket: str, upload: Upload) -> None:
        """Abort an unfinished upload, if it still exists."""
        with translate_s3_errors(f"s3://{bucket}/{upload.key}", self.endpoint):
            try:
                self._s3.abort_multipart_upload(Bucket=bucket, Key=upload.key, UploadId=upload.upload_id)
            except self._s3.exceptions.NoSuchUpload:
                return

    def check(self, uri: S3Uri) -> None:
        """Check that the bucket exists and that the folder `uri` may be listed. Raises StoreError if not."""
        with translate_s3_errors(uri, self.endpoint):
            self._s3.list_objects_v2(Bucket=uri.bucket, Prefix=_folder(uri), MaxKeys=1)

    def _sign_upload_ahead(self, uri: S3Uri, manifest: Manifest, *, once: bool) -> None:
        place, text = uri / MANIFEST, hashlib.sha256(_text_of(manifest).encode()).hexdigest()
        files = (("PUT", uri / entry.name, entry.sha256) for entry in manifest.files)
        self._sign_ahead([("GET", place, NO_BODY), ("PUT", place, text), *files], once=once)

    def _sign_ahead(self, requests: Iterable[tuple[str, S3Uri, str]], *, once: bool = False) -> None:
        """Request signatures for the first MAX_BATCH requests, each given as method, object and SHA-256 of the body."""
        if self._direct is None:
            return
        described = []
        for method, uri, digest in itertools.islice(requests, MAX_BATCH):
            with translate_s3_errors(uri, self.endpoint):
                described.append(self._direct.describe(method, uri, digest, once=once and method == "PUT"))
        # A request whose URL is too long is refused later, with an error that names it.
        self._direct.sign_ahead(described)

    def _abort_large_uploads(self, files: Iterable[Outgoing], uri: S3Uri) -> None:
        if any(size_of(file) > PART_BYTES for file in files):
            # Left by a process that died during this upload.
            self._abort_uploads(uri)

    def _abort_uploads(self, uri: S3Uri, kept: tuple[str, ...] = ()) -> None:
        # Credentials often lack the permission to list uploads. Then a lifecycle rule of the bucket can remove them.
        with contextlib.suppress(AccessDenied):
            for upload in self.uploads(uri):
                if not upload.key.startswith(kept):
                    self.abort_upload(uri.bucket, upload)

    def _delete(self, uri: S3Uri, keys: list[str]) -> None:
        if self._signer is not None:
            # The keys of a batch are in the body, which the signer does not see.
            for key in keys:
                self.delete_object(S3Uri(uri.bucket, key))
            return
        with translate_s3_errors(uri, self.endpoint):
            response = self._s3.delete_objects(
                Bucket=uri.bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
            )
        for error in response.get("Errors", []):
            code, key = str(error.get("Code", "")), error.get("Key", "")
            if code not in ("NoSuchKey", "NotFound"):
                answer = S3Answer("DeleteObjects", 0, code, one_line(error.get("Message")))
                raise answer.to_error(f"s3://{uri.bucket}/{key}", self.endpoint)

    def _pages(self, bucket: str, prefix: str, delimiter: str = "", after: str = "") -> Iterable[dict[str, Any]]:
        arguments = {"Bucket": bucket, "Prefix": prefix}
        arguments |= {name: value for name, value in (("Delimiter", delimiter), ("StartAfter", after)) if value}
        pages: Iterable[dict[str, Any]] = self._s3.get_paginator("list_objects_v2").paginate(**arguments)
        return pages


def _folders(prefix: str, key: str) -> list[str]:
    """Return the keys of the folders from `prefix` down to the object's own folder."""
    parents = key.removeprefix(prefix).split("/")[:-1]
    return [prefix] + [prefix + "/".join(parents[: depth + 1]) + "/" for depth in range(len(parents))]


def read_connection(variables: Mapping[str, str]) -> S3Connection:
    """Return the connection that these variables describe. Raises StoreError if they are invalid."""
    try:
        return S3Connection.of_variables(variables)
    except ValueError as error:
        raise StoreError(str(error)) from error


def use_content_md5(request: Any, **_: object) -> None:
    """Use Content-MD5 in a request instead of newer checksums, which not all S3 servers accept."""
    for name in [name for name in request.headers if name.lower().startswith(CHECKSUM_HEADERS)]:
        del request.headers[name]
    digest = hashlib.md5(bytes(request.body or request.data), usedforsecurity=False).digest()
    del request.headers["Content-MD5"]
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()


def follow_no_redirect(context: dict[str, Any], **_: object) -> None:
    """Prevent botocore from repeating a request in the bucket's region.

    rlrun-server signs only for its own region, so a wrong region must be an error here as well.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


def refuse_other_answers(http_response: Any, model: Any, **_: object) -> None:
    """Raise NotAnAnswer for a successful response that is not from S3.

    botocore would parse other XML as an empty list. The body of an object is not checked.
    """
    if http_response.status_code >= 300 or model.has_streaming_output:
        return
    body, root = http_response.content[:HEAD_BYTES], LISTINGS.get(model.name, b"")
    if root not in body or b"<html" in body.lower():
        raise NotAnAnswer(f"{http_response.status_code} {body[:80].decode(errors='replace') or 'without a body'}")


def forget_refused_signatures(signer: RequestSigner) -> Callable[..., None]:
    """Return a botocore hook that drops the signer's cached signatures after S3 has refused a request."""

    def after(response_dict: Mapping[str, Any] | None, **_: object) -> None:
        if response_dict is not None and response_dict["status_code"] in REFUSED_STATUSES:
            signer.forget()

    return after


def _folder(uri: S3Uri) -> str:
    # Append a slash, so that `step-1` is not a prefix of `step-10`.
    return f"{uri.key}/" if uri.key else ""


def build_manifest(source: Path | Mapping[str, bytes], description: Manifest) -> Manifest:
    """Build the manifest of an upload: `description` with the files of `source`, hashed in several threads."""
    with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="hash") as threads:
        return description.model_copy(update={"files": list(threads.map(_hash, _outgoing(source)))})


def _outgoing(source: Path | Mapping[str, bytes]) -> list[Outgoing]:
    if isinstance(source, Mapping):
        return [Outgoing(name, bytes(data)) for name, data in sorted(source.items())]
    if not source.is_dir():
        raise ValueError(f"{source} is not a folder")
    paths = {p.relative_to(source).as_posix(): p for p in sorted(source.rglob("*")) if p.is_file()}
    paths.pop(MANIFEST, None)
    return [Outgoing(name, path) for name, path in paths.items()]


def _path_of(entry: FileEntry, folder: Path, uri: S3Uri) -> Path:
    parts = PurePosixPath(entry.name)
    if parts.is_absolute() or ".." in parts.parts:
        raise Corrupt(f"the manifest of {uri} names a file outside its folder: {entry.name!r}")
    path = folder / parts
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _check(entry: FileEntry, actual: FileEntry, uri: S3Uri) -> None:
    if actual != entry:
        raise Corrupt(
            f"{uri / entry.name} is {actual.size} bytes with SHA-256 {actual.sha256[:12]}, but its manifest records "
            f"{entry.size} bytes with SHA-256 {entry.sha256[:12]}: delete the artifact and use an older one"
        )


def _read(file: Outgoing) -> Outgoing:
    if isinstance(file.content, bytes):
        content = file.content
    else:
        with file.content.open("rb") as opened:
            content = opened.read(SMALL_BYTES + 1)
        if len(content) > SMALL_BYTES:
            raise StoreError(f"{file.name} grew while it was read: upload it again once no process writes to it")
    return Outgoing(file.name, content, _hash_bytes(file.name, content))


def _complete(manifest: Manifest, entries: list[FileEntry], uri: S3Uri) -> Manifest:
    """Return the manifest with `entries`, the files as read. Raises StoreError if the manifest lists other files."""
    complete = manifest.model_copy(update={"files": entries})
    if manifest.files and not complete.has_content_of(manifest):
        raise StoreError(f"files changed during the upload to {uri}: upload the files again")
    return complete


def _text_of(manifest: Manifest) -> str:
    return manifest.model_dump_json(by_alias=True, exclude_none=True, indent=1)


def _artifact_exists(uri: S3Uri) -> ArtifactExists:
    message = f"{uri} contains a different complete artifact, which is not replaced: delete it, or use another folder"
    return ArtifactExists(message)


def _hash(file: Outgoing) -> FileEntry:
    if isinstance(file.content, bytes):
        return _hash_bytes(file.name, file.content)
    return _hash_file(file.name, file.content)


def _hash_bytes(name: str, data: bytes) -> FileEntry:
    return FileEntry(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _hash_file(name: str, path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(name=name, size=file.tell(), sha256=digest)


def _replace_folder(new: Path, dest: Path) -> None:
    if dest.is_dir() and any(dest.iterdir()):
        # There is no portable call that swaps two folders, so the old one is renamed first.
        old = Path(tempfile.mkdtemp(prefix=f".{dest.name}-old-", dir=dest.parent))
        dest.rename(old)
        new.rename(dest)
        shutil.rmtree(old, ignore_errors=True)
    else:
        new.rename(dest)
