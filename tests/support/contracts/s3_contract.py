"""Requests to S3 with what follows from them: the same cases with a real server and with FakeS3.

The client is boto3's, as `Store` configures it. https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations.html
describes what the cases expect. They hold what servers have in common, and no code may rest on more.
"""

import contextlib
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

PART = 5 * 1024**2
"""Smallest part of an upload, except for the last one."""


@dataclass
class Bucket:
    """A client, and a folder of a bucket that only one case uses."""

    client: Any
    name: str
    folder: str

    def key(self, name: str = "one") -> str:
        """Return the key of an object."""
        return f"{self.folder}/{name}"

    def place(self, name: str = "one") -> dict[str, str]:
        """Return the arguments that name an object."""
        return {"Bucket": self.name, "Key": self.key(name)}

    def put(self, name: str = "one", data: bytes = b"0123456789", **conditions: str) -> str:
        """Write an object. Returns its ETag."""
        return str(self.client.put_object(**self.place(name), Body=data, **conditions)["ETag"])

    def get(self, name: str = "one", **asked: str) -> bytes:
        """Return the bytes of an object."""
        data: bytes = self.client.get_object(**self.place(name), **asked)["Body"].read()
        return data

    def page(self, prefix: str = "", **arguments: Any) -> dict[str, Any]:
        """Return a page of a listing."""
        page: dict[str, Any] = self.client.list_objects_v2(Bucket=self.name, Prefix=self.key(prefix), **arguments)
        return page

    def names(self, page: dict[str, Any]) -> list[str]:
        """Return the names of a page's objects."""
        return [entry["Key"].removeprefix(self.key("")) for entry in page.get("Contents", [])]

    def delete(self, *names: str) -> dict[str, Any]:
        """Delete objects with one request."""
        objects = [{"Key": self.key(name)} for name in names]
        answer: dict[str, Any] = self.client.delete_objects(
            Bucket=self.name, Delete={"Objects": objects, "Quiet": True}
        )
        return answer

    def upload(self, name: str = "one") -> dict[str, str]:
        """Begin an upload in parts. Returns the arguments that name it."""
        begun = self.client.create_multipart_upload(**self.place(name))
        return {**self.place(name), "UploadId": begun["UploadId"]}

    def part(self, upload: dict[str, str], number: int, data: bytes) -> dict[str, Any]:
        """Upload a part. Returns what completes it."""
        answer = self.client.upload_part(**upload, PartNumber=number, Body=data)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def complete(self, upload: dict[str, str], *parts: dict[str, Any], **conditions: str) -> dict[str, Any]:
        """Complete an upload."""
        answer: dict[str, Any] = self.client.complete_multipart_upload(
            **upload, MultipartUpload={"Parts": list(parts)}, **conditions
        )
        return answer

    def uploads(self, prefix: str = "") -> dict[str, Any]:
        """Return a page of the uploads that are not completed."""
        page: dict[str, Any] = self.client.list_multipart_uploads(Bucket=self.name, Prefix=self.key(prefix))
        return page


def refusal(request: Callable[[], object]) -> tuple[int, str]:
    """Return status and code of the error."""
    with pytest.raises(ClientError) as error:
        request()
    answer = error.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


Case = Callable[[Bucket], None]
CASES: dict[str, Case] = {}
NOT_FOUND, EXISTS, NO_RANGE = (404, "NoSuchKey"), (412, "PreconditionFailed"), (416, "InvalidRange")
NO_UPLOAD = (404, "NoSuchUpload")


def _case(case: Case) -> Case:
    CASES[getattr(case, "__name__")] = case  # noqa: B009
    return case


@_case
def an_object_is_read_as_last_written(bucket: Bucket) -> None:
    bucket.put(data=b"before")
    bucket.put(data=b"after this")
    answer = bucket.client.get_object(**bucket.place())
    assert (answer["Body"].read(), answer["ContentLength"]) == (b"after this", 10)


@_case
def a_body_is_read_from_a_file(bucket: Bucket) -> None:
    bucket.client.put_object(**bucket.place(), Body=io.BytesIO(b"from a file"))
    assert bucket.get() == b"from a file"


@_case
def a_body_is_read_in_pieces(bucket: Bucket) -> None:
    bucket.put()
    body = bucket.client.get_object(**bucket.place())["Body"]
    assert [body.read(4), body.read(4), body.read(4), body.read(4)] == [b"0123", b"4567", b"89", b""]


@_case
def the_etag_of_an_object_is_the_md5_of_its_bytes(bucket: Bucket) -> None:
    etag = f'"{hashlib.md5(b"0123456789", usedforsecurity=False).hexdigest()}"'
    assert bucket.put() == etag
    assert bucket.client.get_object(**bucket.place())["ETag"] == etag
    assert bucket.client.get_object(**bucket.place(), Range="bytes=0-1")["ETag"] == etag


@_case
def a_missing_object_is_not_found(bucket: Bucket) -> None:
    assert refusal(bucket.get) == NOT_FOUND
    assert refusal(lambda: bucket.get(Range="bytes=0-1")) == NOT_FOUND


@_case
def another_bucket_does_not_exist(bucket: Bucket) -> None:
    other = Bucket(bucket.client, "no-such-bucket-here", bucket.folder)
    missing = (404, "NoSuchBucket")
    assert refusal(other.page) == refusal(other.put) == missing
    assert refusal(other.uploads) == refusal(other.upload) == missing
    # A server may look for the object first.
    assert refusal(other.get) in (missing, NOT_FOUND)


@_case
def a_conditional_write_replaces_nothing(bucket: Bucket) -> None:
    bucket.put(data=b"first", IfNoneMatch="*")
    assert refusal(lambda: bucket.put(data=b"second", IfNoneMatch="*")) == EXISTS
    assert bucket.get() == b"first"
    bucket.client.delete_object(**bucket.place())
    bucket.put(data=b"third", IfNoneMatch="*")
    assert bucket.get() == b"third"


@_case
def a_deleted_object_is_not_found(bucket: Bucket) -> None:
    bucket.put()
    bucket.client.delete_object(**bucket.place())
    assert refusal(bucket.get) == NOT_FOUND
    assert bucket.names(bucket.page()) == []


@_case
def a_missing_object_is_deleted_without_an_error(bucket: Bucket) -> None:
    bucket.client.delete_object(**bucket.place())
    assert "Errors" not in bucket.delete("two")


@_case
def many_objects_are_deleted_at_once(bucket: Bucket) -> None:
    for name in ("a", "b", "c"):
        bucket.put(name)
    assert "Deleted" not in bucket.delete("a", "c", "missing")
    too_many = [str(number) for number in range(1001)]
    with pytest.raises(ClientError):
        bucket.delete("b", *too_many)
    assert bucket.names(bucket.page()) == ["b"]


@_case
def ranges_of_an_object(bucket: Bucket) -> None:
    bucket.put()
    found = {"0-2": b"012", "7-": b"789", "7-99": b"789", "-4": b"6789", "-99": b"0123456789", "9-9": b"9"}
    assert {asked: bucket.get(Range=f"bytes={asked}") for asked in found} == found
    answer = bucket.client.get_object(**bucket.place(), Range="bytes=2-5")
    assert (answer["ContentLength"], answer["ContentRange"]) == (4, "bytes 2-5/10")


@_case
def a_range_beyond_the_end_is_refused(bucket: Bucket) -> None:
    bucket.put()
    bucket.put("empty", b"")
    assert refusal(lambda: bucket.get(Range="bytes=10-12")) == NO_RANGE
    assert refusal(lambda: bucket.get("empty", Range="bytes=0-0")) == NO_RANGE


@_case
def a_listing_begins_with_the_prefix(bucket: Bucket) -> None:
    for name in ("a", "step-1/x", "step-1/y/z", "step-10/x", "b"):
        bucket.put(name)
    assert bucket.names(bucket.page("step-1/")) == ["step-1/x", "step-1/y/z"]
    assert set(bucket.names(bucket.page("step-1"))) == {"step-1/x", "step-1/y/z", "step-10/x"}
    assert bucket.names(bucket.page("Step")) == []


@_case
def an_entry_of_a_listing_has_size_and_time(bucket: Bucket) -> None:
    bucket.put()
    (entry,) = bucket.page()["Contents"]
    assert entry["Size"] == 10
    assert entry["LastModified"].utcoffset() == timedelta(0)


@_case
def an_empty_listing_has_no_entries(bucket: Bucket) -> None:
    page = bucket.page()
    assert page.keys().isdisjoint({"Contents", "CommonPrefixes", "NextContinuationToken"})
    assert (page["IsTruncated"], page["KeyCount"]) == (False, 0)


@_case
def a_listing_goes_on_where_its_page_ended(bucket: Bucket) -> None:
    names = ["a", "b/1", "b/2", "c", "d"]
    for name in names:
        bucket.put(name)
    found: list[str] = []
    token: dict[str, Any] = {}
    for size in (2, 2, 1):
        page = bucket.page(MaxKeys=2, **token)
        assert (page["KeyCount"], page["IsTruncated"]) == (size, size == 2)
        found += bucket.names(page)
        token = {"ContinuationToken": page.get("NextContinuationToken")}
    assert found == names
    assert token == {"ContinuationToken": None}


@_case
def folders_are_listed_once_beside_objects(bucket: Bucket) -> None:
    for name in ("a", "b/1", "b/2/3", "c/1", "d"):
        bucket.put(name)
    page = bucket.page(Delimiter="/")
    assert bucket.names(page) == ["a", "d"]
    assert [entry["Prefix"] for entry in page["CommonPrefixes"]] == [bucket.key("b/"), bucket.key("c/")]
    assert page["KeyCount"] == 4
    assert "Contents" not in bucket.page("b/2", Delimiter="/")


@_case
def a_listing_of_folders_goes_on_where_its_page_ended(bucket: Bucket) -> None:
    for name in ("a", "b/1", "b/2", "c/1", "d"):
        bucket.put(name)
    pages = bucket.client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket.name, Prefix=bucket.key(""), Delimiter="/", MaxKeys=1
    )
    found = [
        [
            *bucket.names(page),
            *(entry["Prefix"].removeprefix(bucket.key("")) for entry in page.get("CommonPrefixes", [])),
        ]
        for page in pages
    ]
    assert [names for names in found if names] == [["a"], ["b/"], ["c/"], ["d"]]


@_case
def a_paginator_yields_all_objects(bucket: Bucket) -> None:
    # Servers on a file system list folder by folder, others by the bytes of the keys.
    names = ["a-b/x", "a.txt", "a/x", "a/y", "a0", "b"]
    for name in names:
        bucket.put(name)
    for size in range(1, 4):
        pages = bucket.client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket.name, Prefix=bucket.key(""), MaxKeys=size
        )
        assert sorted(name for page in pages for name in bucket.names(page)) == names


@_case
def keys_have_any_characters(bucket: Bucket) -> None:
    names = ["a b", "a+b", "a%20b", "é", "a&b<c>\"d'", "a=b?c#d", "~!*();:@,[]", "日本"]
    for name in names:
        bucket.put(name, name.encode())
    assert set(bucket.names(bucket.page())) == set(names)
    assert {bucket.get(name).decode() for name in names} == set(names)
    assert bucket.names(bucket.page("a%")) == ["a%20b"]
    bucket.delete(*names[:5])
    for name in names[5:]:
        bucket.client.delete_object(**bucket.place(name))
    assert bucket.names(bucket.page()) == []


@_case
def names_differ_by_case(bucket: Bucket) -> None:
    bucket.put("a", b"small")
    bucket.put("A", b"large")
    assert (bucket.get("a"), bucket.get("A")) == (b"small", b"large")
    assert bucket.names(bucket.page("A")) == ["A"]


@_case
def a_folder_can_have_a_key(bucket: Bucket) -> None:
    bucket.put("a/", b"")
    bucket.put("a/b")
    assert set(bucket.names(bucket.page("a/"))) == {"a/", "a/b"}


@_case
def an_upload_in_parts_appears_when_it_is_completed(bucket: Bucket) -> None:
    upload = bucket.upload()
    last = bucket.part(upload, 2, b"end")
    first = bucket.part(upload, 1, b"a" * PART)
    assert refusal(bucket.get) == NOT_FOUND
    assert bucket.names(bucket.page()) == []
    bucket.complete(upload, first, last)
    assert bucket.get() == b"a" * PART + b"end"
    assert [entry["Size"] for entry in bucket.page()["Contents"]] == [PART + 3]


@_case
def an_upload_has_the_parts_that_complete_it(bucket: Bucket) -> None:
    upload = bucket.upload()
    bucket.part(upload, 1, b"left out")
    bucket.part(upload, 2, b"before")
    bucket.complete(upload, bucket.part(upload, 2, b"after"))
    assert bucket.get() == b"after"


@_case
def an_upload_with_a_missing_part_is_refused(bucket: Bucket) -> None:
    upload = bucket.upload()
    part = bucket.part(upload, 1, b"end")
    wrong = (400, "InvalidPart")
    assert refusal(lambda: bucket.complete(upload, {**part, "PartNumber": 2})) == wrong
    assert refusal(lambda: bucket.complete(upload, {**part, "ETag": f'"{"0" * 32}"'})) == wrong
    assert refusal(bucket.get) == NOT_FOUND
    bucket.complete(upload, part)
    assert bucket.get() == b"end"


@_case
def an_upload_with_parts_out_of_order_is_refused(bucket: Bucket) -> None:
    upload = bucket.upload()
    parts = [bucket.part(upload, 1, b"a" * PART), bucket.part(upload, 2, b"end")]
    assert refusal(lambda: bucket.complete(upload, *reversed(parts))) == (400, "InvalidPartOrder")
    bucket.client.abort_multipart_upload(**upload)


@_case
def an_upload_with_small_parts_is_refused(bucket: Bucket) -> None:
    upload = bucket.upload()
    parts = [bucket.part(upload, 1, b"a" * (PART - 1)), bucket.part(upload, 2, b"end")]
    assert refusal(lambda: bucket.complete(upload, *parts)) == (400, "EntityTooSmall")
    bucket.client.abort_multipart_upload(**upload)


@_case
def a_conditional_upload_replaces_nothing(bucket: Bucket) -> None:
    upload = bucket.upload()
    part = bucket.part(upload, 1, b"second")
    bucket.put(data=b"first")
    assert refusal(lambda: bucket.complete(upload, part, IfNoneMatch="*")) == EXISTS
    assert bucket.get() == b"first"
    bucket.client.abort_multipart_upload(**upload)
    assert "Uploads" not in bucket.uploads()


@_case
def uploads_are_listed_until_they_end(bucket: Bucket) -> None:
    first, second, other = bucket.upload("a/1"), bucket.upload("a/2"), bucket.upload("b")
    page = bucket.uploads("a/")
    listed = {(found["Key"], found["UploadId"]) for found in page["Uploads"]}
    assert listed == {(upload["Key"], upload["UploadId"]) for upload in (first, second)}
    assert page["Uploads"][0]["Initiated"].utcoffset() == timedelta(0)
    bucket.client.abort_multipart_upload(**first)
    bucket.complete(second, bucket.part(second, 1, b"end"))
    assert "Uploads" not in bucket.uploads("a/")
    bucket.client.abort_multipart_upload(**other)


@_case
def an_upload_that_has_ended_takes_no_parts(bucket: Bucket) -> None:
    upload = bucket.upload()
    part = bucket.part(upload, 1, b"end")
    bucket.client.abort_multipart_upload(**upload)
    assert refusal(lambda: bucket.part(upload, 2, b"end")) == NO_UPLOAD
    assert refusal(lambda: bucket.complete(upload, part)) == NO_UPLOAD
    assert refusal(bucket.get) == NOT_FOUND


@_case
def an_unknown_upload_is_not_aborted(bucket: Bucket) -> None:
    upload = bucket.upload()
    bucket.client.abort_multipart_upload(**upload)
    # SeaweedFS has no error here.
    with contextlib.suppress(bucket.client.exceptions.NoSuchUpload):
        bucket.client.abort_multipart_upload(**upload)
    with pytest.raises(bucket.client.exceptions.NoSuchUpload):
        bucket.client.abort_multipart_upload(**{**upload, "UploadId": "0123"})
