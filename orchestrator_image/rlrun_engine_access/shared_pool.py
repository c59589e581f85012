"""Shared pool: an engine that samples for several runs of a namespace.

A run names its policy in a header, and the request reaches vLLM with the name of the run's own adapter. In vLLM 0.32,
these parts of a request have effects beyond its own sampling:

- Headers: `X-Vllm-Priority` takes precedence over the field `priority`, `X-data-parallel-rank` chooses an engine,
  `X-Session-ID` and `X-Request-Id` set ids. Only FORWARDED_HEADERS reach vLLM.
- Fields: `model`, and the fields that `_own_fields` sets. `cache_salt` separates the prefix cache of the base model by
  run, because the number of cached tokens in a response would reveal prompts of other runs; adapters have separate
  caches anyway. `n` (given by a header), `use_beam_search` and a list of prompts (`check_prompt`) turn one request
  into many.
  `prompt_logprobs`, and `echo` as another name for it, create an object for each likely token of the prompt.
  `structured_outputs` and `response_format`, which the gateway never sends, make vLLM compile a grammar.
  `ec_transfer_params`, `vllm_xargs` and `session_id` reach connectors and plugins. `kv_transfer_params` are kept,
  because the gateway passes the tokens of a chat in them. They have no other effect, because pools must not have a KV
  connector.
- Content parts of a chat with the base model: vLLM takes the part's `type` up to the first underscore as the name of an
  adapter. Names of the pool's adapters therefore contain an underscore (`engine_name`).
- Ids of requests may repeat, because vLLM appends random characters. `chat_template` needs a flag. `prompt_embeds`
  needs `--enable-prompt-embeds`, which pools must not have.
- A content part's `uuid` names cached media of any run, in models with images, audio or video.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from rlrun_engine_access.admission import Admission, QueueFull, Ticket
from rlrun_engine_access.asgi import (
    TOO_MANY_REQUESTS,
    App,
    Disconnected,
    Message,
    Receive,
    Rejection,
    Send,
    header_values,
    send_json,
)
from rlrun_engine_access.body import BodyBuffer, check_prompt, with_fields
from rlrun_engine_access.engine_usage import EngineUsage
from rlrun_engine_access.order import MAX_RUNS, OrderContent, OrderFile, OrderInvalid, RunEntry

MODEL_HEADER = b"x-rlrun-model"
SEQUENCES_HEADER = b"x-rlrun-sequences"
MAX_SEQUENCES = 64
"""Maximum number of sequences of a request, as in vLLM (`VLLM_MAX_N_SEQUENCES`)."""
SAMPLING_PATHS = frozenset({"/v1/completions", "/v1/chat/completions"})
RUN_PATHS = SAMPLING_PATHS | {"/tokenize"}
"""Paths that accept a run's token, for POST requests."""
USAGE_PATHS = frozenset({"/pool-usage"})
"""Path of the runs' usage, for GET requests with the pool's token."""
FORWARDED_HEADERS = frozenset({b"host", b"accept", b"content-type", b"user-agent"})
POOL = RunEntry(uid="", token_digest="", max_requests=16)
"""Entry for the sidecar, which samples with the pool's token to check that the engine applies adapters."""
TOKENIZATIONS = 16
"""Maximum number of a run's requests to `/tokenize` in the engine. These requests do not wait for the run's sampling
requests.
"""
SEND_SECONDS = 60.0
"""Time limit in seconds for a client to read one part of its response."""
ORDER_SECONDS = 1.0
"""Seconds between two reads of the list of runs while requests wait."""
_POLICY = re.compile(r"[A-Za-z0-9._-]{1,128}")


def engine_name(uid: str, policy: str) -> str:
    """Return the name in the engine of a run's policy, as `rlrun.protocol.shared_pool.engine_name`."""
    return f"{uid}_{policy}"


class SharedPool:
    """ASGI application that passes requests of the pool's runs to vLLM when it is their turn."""

    def __init__(self, app: App, order_file: Path, *, max_loras: int, max_sequences: int, max_body: int) -> None:
        """`max_loras` and `max_sequences` are the maximum numbers of adapters and of sequences that vLLM batches, and
        `max_body` is the maximum size of a body in bytes.
        """
        self._app = app
        self._file = OrderFile(order_file)
        self._order: OrderContent | None = None
        # A quarter more than vLLM batches, so that a sequence is always there when another one ends.
        self._samples = Admission(max_loras, capacity=max_sequences * 5 // 4)
        self._samples.set_limits({POOL.uid: POOL.max_requests})
        self._tokenizations = Admission(slots=0, capacity=TOKENIZATIONS * MAX_RUNS)
        self._buffer = BodyBuffer(max_body)
        self._usage = EngineUsage()
        self._turns: dict[Ticket, asyncio.Future[None]] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request to one of RUN_PATHS. It is refused if it has no valid token of a run."""
        try:
            run, order = self._authorize(scope)
            model, sequences = _model(scope, run, order), _sequences(scope, run)
        except Rejection as refusal:
            await refusal.respond(send)
            return
        fields = _own_fields(run, model, sequences)
        if scope["path"] in SAMPLING_PATHS:
            ticket = Ticket(run.uid, model if model != order.base else None, sequences)
            await self._serve(self._samples, ticket, fields, scope, receive, send)
        else:
            await self._serve(self._tokenizations, Ticket(run.uid, None), fields, scope, receive, send)

    async def serve_pool(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request to one of SAMPLING_PATHS with the pool's token. All such requests share one slot, as if they
        used one adapter.
        """
        await self._serve(self._samples, Ticket(POOL.uid, "pool"), None, scope, receive, send)

    async def send_usage(self, send: Send) -> None:
        """Respond with the usage of all runs."""
        with suppress(OrderInvalid):
            self._read_order()
        await send_json(send, self._usage.export(waiting=len(self._turns)))

    async def _serve(
        self,
        admission: Admission,
        ticket: Ticket,
        fields: dict[str, object] | None,
        scope: Message,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            admission.enter(ticket)
        except QueueFull:
            self._usage.count_refusal(ticket.uid)
            await Rejection(429, "Too many requests of this run are waiting for this engine; retry later").respond(send)
            return
        size = 0
        try:
            try:
                received = await self._buffer.receive(ticket.uid, scope, receive)
                size = len(received)
                bodies = [self._edit(received, fields, scope)]
                del received
                await self._wait(admission, ticket, receive)
            except Rejection as refusal:
                if refusal.status == TOO_MANY_REQUESTS:
                    self._usage.count_refusal(ticket.uid)
                await refusal.respond(send)
                return
            except Disconnected:
                return
            if admission is self._samples and ticket.uid != POOL.uid:
                await self._sample(ticket, bodies, scope, receive, send)
            else:
                await self._call_app(bodies, scope, receive, send)
        finally:
            self._buffer.release(ticket.uid, size)
            self._start(admission.end(ticket))

    def _edit(self, received: bytearray, fields: dict[str, object] | None, scope: Message) -> bytes:
        if fields is None:
            return bytes(received)
        body = with_fields(received, fields)
        received.clear()
        if scope["path"] in SAMPLING_PATHS:
            check_prompt(body)
        self._authorize(scope)  # The order may have changed meanwhile.
        return body

    async def _sample(self, ticket: Ticket, bodies: list[bytes], scope: Message, receive: Receive, send: Send) -> None:
        """Pass a run's request on, and count its tokens and its time in vLLM."""
        with self._usage.request(ticket.uid, ticket.sequences) as response:

            async def send_counted(message: Message) -> None:
                if message["type"] == "http.response.body":
                    response.feed(message.get("body", b""))
                await send(message)

            await self._call_app(bodies, scope, receive, send_counted)

    async def _call_app(self, bodies: list[bytes], scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on to vLLM. `bodies` contains only the body and is emptied, so that no reference to the body
        remains here.
        """
        headers = [(name, value) for name, value in scope["headers"] if name in FORWARDED_HEADERS]
        headers.append((b"content-length", str(len(bodies[0])).encode()))
        try:
            async with asyncio.timeout(None) as unread:

                async def send_in_time(message: Message) -> None:
                    unread.reschedule(asyncio.get_running_loop().time() + SEND_SECONDS)
                    await send(message)
                    unread.reschedule(None)

                await self._app({**scope, "headers": headers}, _replay(bodies, receive), send_in_time)
        except TimeoutError:
            if not unread.expired():
                raise

    async def _wait(self, admission: Admission, ticket: Ticket, receive: Receive) -> None:
        turn = self._turns[ticket] = asyncio.get_running_loop().create_future()
        gone = None
        try:
            self._start(admission.offer(ticket))
            if not turn.done():
                self._watch()
                gone = asyncio.ensure_future(_disconnect(receive))
                await asyncio.wait({turn, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                raise Disconnected
            turn.result()
        finally:
            del self._turns[ticket]
            if gone is not None:
                gone.cancel()

    def _start(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            turn = self._turns.get(ticket)  # None if the request is already being refused.
            if turn is not None and not turn.done():
                turn.set_result(None)

    def _authorize(self, scope: Message) -> tuple[RunEntry, OrderContent]:
        try:
            order = self._read_order()
        except OrderInvalid as error:
            raise _unavailable(error) from None
        run = order.run_with(header_values(scope, b"authorization"))
        if run is None:
            raise Rejection(401, "This path requires the token of a run that the shared pool serves")
        return run, order

    def _read_order(self) -> OrderContent:
        try:
            order = self._file.read()
        except OrderInvalid as error:
            self._order = None
            self._set_runs((), _unavailable(error))
            raise
        if order is not self._order:
            self._order = order
            self._set_runs(order.runs, Rejection(401, "The shared pool no longer serves this run"))
        return order

    def _set_runs(self, runs: Sequence[RunEntry], reason: Rejection) -> None:
        samples = {run.uid: run.max_requests for run in (POOL, *runs)}
        tokenizations = {run.uid: TOKENIZATIONS for run in runs}
        self._usage.set_runs(tokenizations.keys())
        for admission, limits in ((self._samples, samples), (self._tokenizations, tokenizations)):
            removed, started = admission.set_limits(limits)
            self._start(started)
            for ticket in removed:
                turn = self._turns.get(ticket)
                if turn is not None and not turn.done():
                    turn.set_exception(Rejection(reason.status, str(reason)))

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch_order())

    async def _watch_order(self) -> None:
        while self._turns:
            await asyncio.sleep(ORDER_SECONDS)
            with suppress(OrderInvalid):
                self._read_order()


def _model(scope: Message, run: RunEntry, order: OrderContent) -> str:
    names = header_values(scope, MODEL_HEADER)
    if len(names) != 1:
        raise Rejection(400, f"Send one header {MODEL_HEADER.decode()} with the policy's name, not {len(names)}")
    name = names[0].decode("utf-8", "replace")
    if name == order.base:
        return name
    if not _POLICY.fullmatch(name):
        raise Rejection(400, f"{MODEL_HEADER.decode()} must match {_POLICY.pattern}, or be the id of the base model")
    return engine_name(run.uid, name)


def _sequences(scope: Message, run: RunEntry) -> int:
    """Return the number of sequences of a request, at most as many as the run may have in the engine."""
    values = header_values(scope, SEQUENCES_HEADER) or [b"1"]
    if len(values) != 1 or not re.fullmatch(rb"[1-9][0-9]?", values[0]) or int(values[0]) > MAX_SEQUENCES:
        raise Rejection(400, f"{SEQUENCES_HEADER.decode()} must be a number from 1 to {MAX_SEQUENCES}")
    return min(int(values[0]), run.max_requests)


def _own_fields(run: RunEntry, model: str, sequences: int) -> dict[str, object]:
    return {
        "model": model, "priority": 0, "cache_salt": run.uid, "n": sequences, "use_beam_search": False, "echo": False,
        "session_id": None, "ec_transfer_params": None, "vllm_xargs": None, "structured_outputs": None,
        "response_format": None,
    }  # fmt: skip


def _unavailable(error: OrderInvalid) -> Rejection:
    return Rejection(503, f"The shared pool serves no run: {error}")


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _replay(bodies: list[bytes], receive: Receive) -> Receive:
    async def replay() -> Message:
        return {"type": "http.request", "body": bodies.pop(), "more_body": False} if bodies else await receive()

    return replay
