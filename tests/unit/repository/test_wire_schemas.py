"""Cost of the worst text for each schema that a program receives. A new schema is found by itself."""

import os
import pickle
import resource
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field
from rlrun.api.base.received import DEFAULT_LIMITS, InputInvalid, limits_of, parse
from rlrun.api.base.rules import ADMITTED
from rlrun.api.base.schema import Schema

from tests.support.wire_schemas import unbounded_fields, wire_schemas, worst_texts

SCHEMAS = wire_schemas()
BYTES = 96 * 1024**2
"""Memory for one text, and its error, by the default limits."""
BYTES_PER_VALUE = 1000
"""Memory for each value above those of the default limits."""
CPU_SECONDS = 5.0


def in_a_process(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a copy of this process, which has its own peak of memory."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receiving)
        try:
            result = work()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        with os.fdopen(sending, "wb") as file:
            pickle.dump(result, file)
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(data) if data else "the process died"


def most_expensive(model: type[BaseModel]) -> tuple[int, float, str]:
    """Return the peak of memory in bytes and CPU time in seconds of parsing all worst texts of a schema."""
    texts = worst_texts(model)
    worst, message = "", ""
    before, peak, slowest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0, 0.0
    for name, text in texts.items():
        for is_user_input in {False, model.__module__.startswith("rlrun_server.")}:
            start = time.process_time()
            try:
                parse(model, text, context=ADMITTED, is_user_input=is_user_input)
            except InputInvalid as error:
                message = max(message, str(error), key=len)
            taken = time.process_time() - start
            growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            if growth > peak or taken > slowest:
                worst = name
            peak, slowest = max(peak, growth), max(slowest, taken)
    assert len(message) < 2000, message[:2000]
    return peak * 1024, slowest, worst


@pytest.mark.slow
@pytest.mark.parametrize("model", SCHEMAS, ids=lambda model: model.__name__)
def test_worst_texts_cost_little(model: type[BaseModel]) -> None:
    found = in_a_process(lambda: most_expensive(model))
    assert isinstance(found, tuple), found
    peak, seconds, name = found
    more = max(0, limits_of(model).values - DEFAULT_LIMITS.values)
    assert peak < BYTES + more * BYTES_PER_VALUE, f"{peak >> 20} MiB: {name}"
    assert seconds < CPU_SECONDS, f"{seconds:.1f} s: {name}"


@pytest.mark.parametrize("model", SCHEMAS, ids=lambda model: model.__name__)
def test_each_text_list_and_map_has_a_maximum(model: type[BaseModel]) -> None:
    assert not unbounded_fields(model), "set max_length, or use an annotated type of rlrun.api.base.names"


def test_a_schema_without_a_maximum_is_found() -> None:
    class Part(Schema):
        names: list[str]
        known: dict[str, int] = Field(max_length=3)

    class Planted(Schema):
        parts: list[Part]
        text: str | None = None

    found = ["Planted.parts", "Planted.parts[].names", "Planted.parts[].names[]", "Planted.text"]
    assert unbounded_fields(Planted) == found


def test_schemas_of_all_programs_are_found() -> None:
    names = {model.__name__ for model in SCHEMAS}
    assert {"RunStatus", "ServingReport", "BatchHeader", "GroupResult", "Manifest", "StorageGrant"} <= names
