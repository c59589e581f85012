"""Redaction: nothing of the field's text is left."""

from typing import Any

import pytest
from rlrun.protocol.problem import Problem
from rlrun.storage.samples.index import row_of
from rlrun.storage.samples.record import SampleRecord
from rlrun.storage.samples.redaction import redact

from tests.support.sample_records import record

SECRET = "hunter2"
INFO = {"user": {"name": SECRET, "age": 7}, "rows": [{"mail": SECRET}, 1], "level": 3}


def secret_record() -> SampleRecord:
    return record(
        prompt=[{"role": "user", "content": SECRET}],
        completion=[{"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": SECRET}}]}],
        answer=SECRET,
        info=INFO,
        error=Problem(reason="RolloutFailed", message=SECRET),
    )


def test_all_fields() -> None:
    fields = ["prompt", "completion", "answer", "info", "error"]
    found = redact(secret_record(), fields)
    assert SECRET not in found.to_line().decode()
    assert SECRET not in row_of(found).text
    assert found.redacted == fields
    assert [m["role"] for m in (*found.prompt, *found.completion)] == ["user", "assistant"]
    assert found.error is not None
    assert found.error.reason == "RolloutFailed"


def test_an_entry_of_info() -> None:
    found = redact(secret_record(), ["info.user.name", "info.rows.mail", "info.missing", "info.level.deeper"])
    assert found.info == {"user": {"name": "[redacted]", "age": 7}, "rows": [{"mail": "[redacted]"}, 1], "level": 3}
    assert found.answer == SECRET


@pytest.mark.parametrize("fields", [[], ["prompt", "info.user"]])
def test_a_record_without_the_field_stays_as_it_is(fields: list[str]) -> None:
    plain = record(prompt=[])
    assert redact(plain, fields) == plain


@pytest.mark.parametrize("info", ['{"user": {"name": "Ada"}}', ['{"user": {"name": "Ada"}}'], {"user": "Ada"}])
def test_a_text_in_the_way_of_an_entry_is_redacted_as_a_whole(info: Any) -> None:
    found = redact(secret_record().model_copy(update={"info": info}), ["info.user.name"])
    assert "Ada" not in found.model_dump_json()
    assert found.redacted == ["info.user.name"]
