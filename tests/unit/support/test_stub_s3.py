"""The server that tests can silence answers the requests that it knows as S3 does."""

import asyncio
import uuid

import pytest
from rlrun.storage.store import Store

from tests.support.contracts import s3_contract
from tests.support.contracts.s3_contract import Bucket, Case
from tests.support.stub_s3 import BUCKET, stub_s3

SHARED: list[Case] = [
    s3_contract.an_object_is_read_as_last_written,
    s3_contract.a_body_is_read_from_a_file,
    s3_contract.a_body_is_read_in_pieces,
    s3_contract.a_missing_object_is_not_found,
    s3_contract.a_deleted_object_is_not_found,
    s3_contract.a_missing_object_is_deleted_without_an_error,
    s3_contract.a_listing_begins_with_the_prefix,
    s3_contract.an_entry_of_a_listing_has_size_and_time,
    s3_contract.an_empty_listing_has_no_entries,
    s3_contract.names_differ_by_case,
    s3_contract.a_folder_can_have_a_key,
]


@pytest.mark.parametrize("case", SHARED)
async def test_the_stub_answers_as_the_contract_says(case: Case) -> None:
    async with stub_s3() as s3:
        store = Store.from_variables(s3.environment)
        await asyncio.to_thread(case, Bucket(store._s3, BUCKET, f"contract/{uuid.uuid4().hex}"))
