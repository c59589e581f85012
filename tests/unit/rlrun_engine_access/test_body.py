"""Editing and receiving of bodies. With vLLM's own request models: tests/image/rlrun_inference/integration."""

import asyncio
import json
import random
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from pydantic_core import from_json
from rlrun_engine_access import body as bodies
from rlrun_engine_access.asgi import Disconnected, Message, Rejection
from rlrun_engine_access.body import BodyBuffer, check_prompt, with_fields

MAX_BODY = 64 * 1024**2
OURS = {"model": "uid-a_policy", "priority": 0, "kv_transfer_params": None}
PARSERS: tuple[Callable[[bytes], Any], ...] = (json.loads, from_json)
ALPHABET = '{}[]",:\\ \nabu0\x00' + "model"


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if kind < 0.3:
        return "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(6)))
    if kind < 0.5 or depth > 3:
        return rng.choice([1, 2.5, None, True])
    if kind < 0.75:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    names = ["model", "priority", "x", "prompt"]
    return {rng.choice(names): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def random_body(rng: random.Random) -> str:
    pairs = [(rng.choice(["model", "priority", "x"]), random_value(rng, 0)) for _ in range(rng.randrange(4))]
    text = "{" + ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in pairs) + "}"
    return rng.choice(["", " ", "\r\n\t"]) + text + rng.choice(["", " ", "\n"])


def damaged(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(ALPHABET) + text[at + rng.randrange(2) :]
    return text if rng.random() < 0.3 else "{" + text.strip().strip("{}") + "}"


def accepted(body: bytes) -> list[Any]:
    """Return what each parser makes of an edited body. A body that is refused or not JSON yields nothing."""
    found = []
    try:
        edited = with_fields(body, OURS)
    except Rejection:
        return []
    for parse in PARSERS:
        try:
            found.append(parse(edited))
        except (ValueError, RecursionError):
            continue
    return found


def test_no_body_keeps_a_field_of_its_own() -> None:
    rng = random.Random(1)
    whole = 0
    for number in range(20_000):
        text = random_body(rng)
        if number % 2:
            text = damaged(rng, text)
        for found in accepted(text.encode()):
            assert isinstance(found, dict), text
            assert {name: found.get(name, "absent") for name in OURS} == OURS, text
            whole += 1
        if number % 2 == 0:
            given = json.loads(text)
            assert accepted(text.encode()) == [given | OURS] * 2, text
    assert whole > 22_000


LONG = [7] * (bodies.MAX_PROMPT_LOGPROBS // 20)


@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ({"prompt": [7] * (bodies.MAX_PROMPT_LOGPROBS + 1), "prompt_logprobs": 0}, True),
        ({"prompt": LONG, "prompt_logprobs": 20}, True),
        ({"prompt": [*LONG, 7], "prompt_logprobs": 20}, False),
        ({"prompt": "ä" * (len(LONG) // 2), "prompt_logprobs": 20}, True),
        ({"prompt": "ä" * len(LONG), "prompt_logprobs": 20}, False),
        ({"prompt": "\ud800", "prompt_logprobs": 1}, True),
        ({"prompt": LONG[: len(LONG) // 4], "prompt_logprobs": 20, "n": 4}, True),
        ({"prompt": LONG, "prompt_logprobs": 20, "n": 2}, False),
        ({"prompt": LONG * 20, "prompt_logprobs": 0, "n": 2}, False),
        ({"messages": [], "prompt_logprobs": 0}, True),
        ({"messages": [], "prompt_logprobs": 1}, False),
        ({"prompt": 7, "prompt_logprobs": 1}, False),
        *(({"prompt": [7], "prompt_logprobs": odd}, False) for odd in (-1, True, 1.0, "1", [1])),
    ],
    ids=lambda value: str(value)[:40],
)
def test_likely_tokens_of_a_prompt_are_bounded(fields: dict[str, Any], passes: bool) -> None:
    body = with_fields(json.dumps(fields).encode(), {"model": "x"})
    with nullcontext() if passes else pytest.raises(Rejection, match="prompt_logprobs"):
        check_prompt(body)


ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8-sig")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bodies_in_other_encodings_are_refused(encoding: str) -> None:
    for text in ('{"model": "other"}', "{}", '{"model": "other"}\u7d00', '{"model": "other", "x": "\u7d7d"}\u7d7d'):
        body = text.encode(encoding)
        for shift in (b"", b" ", b"{", b"}"):
            with pytest.raises(Rejection, match="must be a JSON object in UTF-8"):
                with_fields(body + shift, OURS)
            assert accepted(shift + body + b"}") == []


@pytest.mark.parametrize(
    "text",
    [
        '{"model": "a", "model": "b"}', '{"model": "a", "MODEL": "b"}', '{"mod\\u0065l": "a"}', '{"x": "}"}',
        '{"model": "a", "x": {"model": "b"}}', '{ }', '{}', ' {\n} ', '{"x": "\\""}', '{"x": "\\\\"}',
        '{"x": "é\u2028"}',
    ],
)  # fmt: skip
def test_the_last_of_equal_names_is_ours(text: str) -> None:
    found = accepted(text.encode())
    assert found == [json.loads(text) | OURS] * 2
    assert json.loads(with_fields(text.encode(), OURS), object_pairs_hook=list)[-len(OURS) :] == list(OURS.items())


@pytest.mark.parametrize(
    "text",
    [
        '{"x": "}',
        '{"model": "a"}}',
        '{"x": "\\}',
        '{"x": {"y": 1}',
        "{,}",
        "{\x0b}",
        '{"model": "a"} {}',
        '{"a"}',
        "{[}",
    ],
)
def test_a_body_that_is_not_json_stays_so(text: str) -> None:
    assert accepted(text.encode()) == []


@pytest.mark.parametrize("text", ["", " ", "{", "}", "[]", "null", '"{}"', "[{}]", "x{}", "{}x", "\ufeff{}", "{\0}"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Rejection, match="must be a JSON object in UTF-8") as raised:
        with_fields(text.encode(), OURS)
    assert raised.value.status == 400


def test_a_deep_body_passes_unparsed() -> None:
    depth = 100_000
    body = b'{"x": ' + b"[" * depth + b"]" * depth + b"}"
    assert with_fields(body, OURS).startswith(body[:-1])


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt": "hi"}', '{"prompt": [1, 2]}', '{"prompt": []}', '{"prompt": ["x"], "prompt": "hi"}', "{}",
        '{"prompt": null, "kv_transfer_params": null}', '{"kv_transfer_params": {"prompt_token_ids": [1]}}',
        '{"kv_transfer_params": {"prompt_token_ids": null}}', '{"messages": [{"prompt": ["x"]}]}',
    ],
)  # fmt: skip
def test_a_request_for_one_sequence_passes(text: str) -> None:
    check_prompt(with_fields(text.encode(), {"model": "x"}))


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt": ["x"]}', '{"prompt": [[1], [2]]}', '{"prompt": [1, "x"]}', '{"prompt": [1, [2]]}',
        '{"prompt": [true]}', '{"prompt": [1.0]}', '{"prompt": [null]}', '{"pro\\u006dpt": ["x"]}',
        '{"prompt": "hi", "prompt": ["x"]}', '{"kv_transfer_params": {"prompt_token_ids": [[1], [2]]}}',
        '{"kv_transfer_params": {"prompt_token_ids": "12"}}', '{"kv_transfer_params": {"prompt_token_ids": ["1"]}}',
        '{"x": }', '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"x": ' + "1" * 10_000 + "}",
    ],
    ids=lambda text: text[:70],
)  # fmt: skip
def test_a_request_for_many_sequences_is_refused(text: str) -> None:
    with pytest.raises(Rejection) as raised:
        check_prompt(with_fields(text.encode(), {"model": "x"}))
    assert raised.value.status == 400


class Client:
    """Client that sends chunks of a body, and counts how many of them are taken."""

    def __init__(self, *chunks: bytes, headers: list[tuple[bytes, bytes]] | None = None, repeat: int = 1) -> None:
        self.scope: Message = {"type": "http", "headers": headers or []}
        self.taken = 0
        self._chunks = chunks
        self._count = len(chunks) * repeat

    async def receive(self) -> Message:
        if self.taken == self._count:
            return {"type": "http.disconnect"}
        chunk = self._chunks[self.taken % len(self._chunks)]
        self.taken += 1
        return {"type": "http.request", "body": chunk, "more_body": self.taken < self._count}


async def refusal_of(buffer: BodyBuffer, client: Client, uid: str = "a") -> Rejection:
    with pytest.raises(Rejection) as raised:
        await buffer.receive(uid, client.scope, client.receive)
    return raised.value


async def test_a_body_of_several_chunks_is_received() -> None:
    buffer, client = BodyBuffer(MAX_BODY), Client(b"{", b"", b"}")
    assert await buffer.receive("a", client.scope, client.receive) == b"{}"
    assert buffer._sizes == {"a": 2}
    buffer.release("a", 2)
    assert buffer._sizes == {}


async def test_a_body_of_a_gigabyte_is_refused_without_reading_it() -> None:
    buffer, client = (
        BodyBuffer(MAX_BODY),
        Client(b"x" * 2**16, headers=[(b"content-length", b"1073741824")], repeat=2**14),
    )
    refusal = await refusal_of(buffer, client)
    assert (refusal.status, refusal.closes, client.taken) == (413, True, 0)
    assert "maximum context length" in str(refusal), "the gateway's problem is PromptTooLong"


async def test_a_body_of_a_gigabyte_without_its_length_is_refused_at_the_limit() -> None:
    buffer, client = BodyBuffer(MAX_BODY), Client(b"x" * 2**16, repeat=2**14)
    tracemalloc.start()
    try:
        refusal = await refusal_of(buffer, client)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (refusal.status, refusal.closes) == (413, True)
    assert client.taken == MAX_BODY // 2**16 + 1
    assert peak < 2.5 * MAX_BODY
    assert buffer._sizes == {}


async def test_a_compressed_body_is_refused() -> None:
    for value in (b"gzip", b"br", b"identity, gzip", b""):
        refusal = await refusal_of(BodyBuffer(MAX_BODY), Client(b"{}", headers=[(b"content-encoding", value)]))
        assert refusal.status == 415
    client = Client(b"{}", headers=[(b"content-encoding", b"identity")])
    assert await BodyBuffer(MAX_BODY).receive("a", client.scope, client.receive) == b"{}"


async def test_bodies_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_BUFFERED", 10)
    monkeypatch.setattr(bodies, "MAX_BUFFERED_PER_RUN", 6)
    buffer = BodyBuffer(MAX_BODY)
    for uid in ("a", "b"):
        client = Client(b"{123}")
        await buffer.receive(uid, client.scope, client.receive)
    assert (await refusal_of(buffer, Client(b"{", b"}"), "c")).status == 429
    buffer.release("b", 5)
    assert (await refusal_of(buffer, Client(b"{", b"}"), "a")).status == 429, "a run has a limit of its own"
    assert buffer._sizes == {"a": 5}, "a refused body does not count"
    await buffer.receive("c", Client().scope, Client(b"{", b"}").receive)


async def test_a_slow_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "RECEIVE_SECONDS", 0.01)
    buffer, given = BodyBuffer(MAX_BODY), [b"{"]

    async def receive() -> Message:
        if not given:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": given.pop(), "more_body": True}

    with pytest.raises(Rejection) as raised:
        await buffer.receive("a", {"headers": []}, receive)
    assert (raised.value.status, raised.value.closes, buffer._sizes) == (408, True, {})


async def test_a_client_that_leaves_within_its_body_is_noticed() -> None:
    buffer = BodyBuffer(MAX_BODY)
    given: list[Message] = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Message:
        return given.pop()

    with pytest.raises(Disconnected):
        await buffer.receive("a", {"headers": []}, receive)
    assert buffer._sizes == {}
