"""Grants for S3: their bytes, and what servers of another version make of them."""

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError
from rlrun.api.base.names import Text
from rlrun.api.base.schema import Schema
from rlrun.protocol import signed_text
from rlrun.protocol.storage_access import StorageGrant, StorageRole

KEY = b"k" * 32
ENDS = datetime(2026, 1, 1, 14, tzinfo=UTC)
OWN = StorageGrant(namespace="team", owner="uid-1", role=StorageRole.trainer, folder="s3://bucket/run")
HELD = OWN.model_copy(update={"holder": "pool-a", "ends": ENDS})
OWN_JSON = (
    b'{"namespace":"team","owner":"uid-1","role":"trainer","folder":"s3://bucket/run","readable":[],"listable":[]}'
)


class OldGrant(Schema):
    """Grant as servers before holders and ends read it."""

    namespace: Text
    owner: Text
    role: StorageRole
    folder: Text = ""
    readable: list[Text] = Field(default_factory=list, max_length=1024)
    listable: list[Text] = Field(default_factory=list, max_length=1024)


def payload_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.partition(".")[0] + "===")


def test_a_grant_without_holder_and_end_has_the_bytes_of_earlier_versions() -> None:
    text = signed_text.sign(OWN, KEY)
    assert payload_of(text) == OWN_JSON
    old = signed_text.verify(text, [KEY], OldGrant)
    assert old is not None
    assert signed_text.sign(old, KEY) == text
    assert signed_text.verify(signed_text.sign(old, KEY), [KEY], StorageGrant) == OWN


@pytest.mark.parametrize("change", [{}, {"holder": ""}])
def test_an_earlier_server_refuses_a_grant_with_an_end(change: dict[str, str]) -> None:
    text = signed_text.sign(HELD.model_copy(update=change), KEY)
    assert signed_text.verify(text, [KEY], StorageGrant) is not None
    assert signed_text.verify(text, [KEY], OldGrant) is None


def test_a_held_grant_is_read_again() -> None:
    text = signed_text.sign(HELD, KEY)
    assert payload_of(text) == OWN_JSON[:-1] + b',"holder":"pool-a","ends":"2026-01-01T14:00:00Z"}'
    assert signed_text.verify(text, [KEY], StorageGrant) == HELD


def test_the_audience_is_that_of_the_process_that_has_the_grant() -> None:
    assert (OWN.audience, HELD.audience) == ("rlrun/uid-1/trainer", "rlrun/pool-a/trainer")


@pytest.mark.parametrize("end", [{}, {"ends": None}, {"ends": "2026-01-01T14:00:00"}])
def test_a_holder_needs_an_end_with_a_time_zone(end: dict[str, str | None]) -> None:
    with pytest.raises(ValidationError, match=r"must also set `ends`|timezone"):
        StorageGrant.model_validate({**OWN.to_json_dict(), "holder": "pool-a", **end})


@given(position=st.integers(0, 10_000), change=st.integers(1, 255))
def test_no_changed_byte_is_accepted(position: int, change: int) -> None:
    data = bytearray(signed_text.sign(HELD, KEY).encode())
    data[position % len(data)] ^= change
    # The last character of base64 has unused bits, so another text may have the same signature.
    assert signed_text.verify(data.decode("latin-1"), [KEY], StorageGrant) in (None, HELD)
