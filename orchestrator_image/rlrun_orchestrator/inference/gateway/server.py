"""Rollout gateway: an OpenAI API for environments that records every token.

    /groups/{group}/v1/chat/completions, /completions, /models
    /groups/{group}/rollouts/{rollout}/v1/...       the same for clients that cannot send X-Rollout-Id
    /environments/{owner}/{name}?version=           tar of wheels

Any OpenAI client works unchanged, and the data for the trainer never passes through user code. A request without a
rollout id becomes a separate rollout, whose id is returned in the response's X-Rollout-Id. A client that makes several
turns in one rollout must send an id. Several rollouts whose first requests are equal may share one request
(`ROLLOUT_IDS_HEADER`).
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web
from rlrun.api.base.received import ENGINE_LIMITS, InputInvalid, InputLimits, read_fast
from rlrun.constants import CONFLICT, Reason
from rlrun.protocol.access import is_allowed
from rlrun.protocol.environment import MAX_SHARED_ROLLOUTS, ROLLOUT_ID_HEADER, ROLLOUT_IDS_HEADER
from rlrun.protocol.problem import Problem
from rlrun.service.access import unauthorized_response
from rlrun.service.errors import ProblemError
from rlrun.service.server import json_response
from rlrun.storage.store import StoreError

from rlrun_orchestrator.data.trajectories import Turn
from rlrun_orchestrator.inference.gateway.environment_packages import PackageMissing, PackageReader
from rlrun_orchestrator.inference.gateway.limits import ROLLOUT_ID, Limits
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups, RolloutSession, ServedPolicy
from rlrun_orchestrator.inference.gateway.package_pins import PackageChanged
from rlrun_orchestrator.inference.gateway.prefix_bridge import Continuation, PrefixBridge, conversation
from rlrun_orchestrator.inference.gateway.prefixes import has_prefix
from rlrun_orchestrator.inference.gateway.prompt_tokenizer import PromptTokenizer
from rlrun_orchestrator.inference.gateway.request_router import GroupClosed, NoReplicaAvailable, RequestRouter
from rlrun_orchestrator.inference.gateway.responses import (
    InvalidEngineResponse,
    join_choices,
    parse_turn,
    refusal_problem,
    split_choices,
    strip_internal_fields,
    to_event_stream,
)
from rlrun_orchestrator.inference.gateway.sampling_rules import (
    BadRequest,
    CompletionKind,
    PromptTooLong,
    SamplingRules,
    SamplingSeedKey,
    check,
    ignored_constraints,
    replaced_fields,
)

log = logging.getLogger(__name__)

_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(slots=True)
class RolloutRequest:
    """Request of one rollout."""

    rollout: str
    session: RolloutSession
    arrival: int
    turn: int = 0


@dataclass(slots=True)
class Exchange:
    """State of a request in progress."""

    kind: CompletionKind
    rollouts: Sequence[RolloutRequest]
    """Rollouts that each get one choice of the response. Several rollouts share a request only if it is the first
    request of each.
    """
    request_body: dict[str, Any]
    continuation: Continuation | None = None
    """Earlier chat that the request continues, with the prompt for it."""


class EngineRefused(Exception):
    """Error for a request that the engine refused. The client gets the engine's response."""

    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(f"the inference engine returned {status}")
        self.status = status
        self.data = data


class Gateway:
    """HTTP routes of the gateway. `packages` is None only in tests without S3."""

    def __init__(
        self,
        groups: LiveGroups,
        rules: SamplingRules,
        router: RequestRouter,
        packages: PackageReader | None,
        *,
        limits: Limits | None = None,
        exact_prefixes: bool = True,
        package_token: str | None = None,
    ) -> None:
        """`exact_prefixes` makes the next turn of a conversation start with the exact tokens of the previous one.

        `package_token` is the token for package requests. Other requests name a live group, whose id is secret.
        """
        self._groups = groups
        self._rules = rules
        self._router = router
        self._packages = packages
        self._package_token = package_token
        self._limits = limits or Limits()
        self._tokenizer = PromptTokenizer(router)
        self._prefix_bridge = PrefixBridge(self._tokenizer, enabled=exact_prefixes)
        self._stats = router.stats
        self._engines_take_n = True
        """False once an engine has returned fewer choices than requested."""
        self._warned: set[str] = set()
        """Fields whose removal or replacement was logged. Each is logged only once, because environments send them with
        every request.
        """

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=self._limits.body_bytes)
        for prefix in ("/groups/{group}/v1", "/groups/{group}/rollouts/{rollout}/v1"):
            app.router.add_post(f"{prefix}/chat/completions", self._chat)
            app.router.add_post(f"{prefix}/completions", self._text)
            app.router.add_get(f"{prefix}/models", self._models)
            app.router.add_post(f"{prefix}/responses", self._other)
            app.router.add_post(f"{prefix}/messages", self._other)
        app.router.add_get("/environments/{owner}/{name}", self._environment)
        return app

    async def _chat(self, request: web.Request) -> web.Response:
        return await self._complete(request, CompletionKind.chat)

    async def _text(self, request: web.Request) -> web.Response:
        return await self._complete(request, CompletionKind.text)

    async def _other(self, request: web.Request) -> web.Response:
        return await self._complete(request, None)

    async def _complete(self, request: web.Request, kind: CompletionKind | None) -> web.Response:
        try:
            group = self._group(request)
            if group.in_flight >= self._limits.in_flight:
                message = (
                    f"This group has {group.in_flight} requests in progress, which is the maximum. Wait for one to "
                    "finish."
                )
                raise ProblemError.of(429, Reason.TOO_MANY_REQUESTS, message)
            group.in_flight += 1
            try:
                return await self._answer(request, kind, group)
            finally:
                group.in_flight -= 1
        except ProblemError as error:
            self._stats.refusals[error.problem.reason] += 1
            return _error(error.status, error.problem)
        except BadRequest as error:
            self._stats.refusals["invalid_request_error"] += 1
            return _error(400, Problem(reason="invalid_request_error", message=str(error)))
        except NoReplicaAvailable as error:
            return _error(503, error.problem)
        except InvalidEngineResponse as error:
            log.error("%s", error)
            return _error(502, error.problem)

    async def _answer(self, request: web.Request, kind: CompletionKind | None, group: LiveGroup) -> web.Response:
        """Handle a group's request. `kind` is None for an API whose tokens cannot be recorded.

        A failure is recorded, and reported if the rollout ends with it.
        """
        # Count the arrival before reading the body, because it determines the order of turns and the seeds.
        rollouts = self._rollouts(request, group)
        try:
            if kind is None:
                message = (
                    f"{request.path.rpartition('/v1')[2]} is not available in a training run, because the tokens of "
                    "its items cannot be recorded exactly. Use /v1/chat/completions or /v1/completions"
                )
                raise ProblemError.of(404, Reason.REQUEST_REFUSED, message)
            return await self._exchange(group, await self._admit(request, kind, group, rollouts))
        except (ProblemError, BadRequest, NoReplicaAvailable, InvalidEngineResponse) as error:
            _record_refusal(group, rollouts, error.problem)
            raise

    def _group(self, request: web.Request) -> LiveGroup:
        group_id = request.match_info["group"]
        group = self._groups.get(group_id)
        if group is None:
            raise _unknown_group(group_id)
        return group

    def _rollouts(self, request: web.Request, group: LiveGroup) -> list[RolloutRequest]:
        """Return the request's rollouts, after adding them to the group."""
        shared = request.headers.get(ROLLOUT_IDS_HEADER)
        if shared is None:
            arrival = group.next_arrival()
            header = request.headers.get(ROLLOUT_ID_HEADER)
            return [self._rollout(group, request.match_info.get("rollout") or header or f"request-{arrival}", arrival)]
        ids = shared.split(",")
        if len(ids) > MAX_SHARED_ROLLOUTS or len(set(ids)) < len(ids) or not group.rollouts.keys().isdisjoint(ids):
            raise BadRequest(
                f"{ROLLOUT_IDS_HEADER} must have at most {MAX_SHARED_ROLLOUTS} ids, all different and without earlier "
                "requests; send a request for each rollout instead"
            )
        return [self._rollout(group, rollout, group.next_arrival()) for rollout in ids]

    def _rollout(self, group: LiveGroup, rollout: str, arrival: int) -> RolloutRequest:
        if not ROLLOUT_ID.fullmatch(rollout):
            raise BadRequest(f"{ROLLOUT_ID_HEADER} must be 1 to 200 printable ASCII characters")
        if rollout not in group.rollouts and len(group.rollouts) >= self._limits.rollouts:
            message = f"This group has {len(group.rollouts)} rollouts, which is the maximum. End the group."
            raise ProblemError.of(400, Reason.TOO_MANY_ROLLOUTS, message)
        return RolloutRequest(rollout, group.rollout_session(rollout), arrival)

    async def _admit(
        self, request: web.Request, kind: CompletionKind, group: LiveGroup, rollouts: Sequence[RolloutRequest]
    ) -> Exchange:
        """Validate everything that can be checked without the engine."""
        for one in rollouts:
            made = one.session.requests
            if made >= self._limits.turns:
                message = f"Rollout {one.rollout} has made {made} requests, which is the maximum. End the rollout."
                raise ProblemError.of(400, Reason.TOO_MANY_TURNS, message)
            one.turn = made
            one.session.requests += 1
        requested = await self._body(request)
        if kind is CompletionKind.chat:
            self._warn_of_ignored(requested)
            requested = (group.rules or self._rules).with_template(requested)
        return Exchange(kind, rollouts, requested)

    def _warn_of_ignored(self, requested: dict[str, Any]) -> None:
        for name in set(ignored_constraints(requested)) - self._warned:
            self._warned.add(name)
            log.warning(
                "%s is ignored in all requests of this run, because the engine would sample from a different "
                "distribution than the trainer computes. Calls may violate their schema; check the arguments in the "
                "environment",
                name,
            )

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await request.read()
            requested = read_fast(body, "the body", InputLimits(self._limits.body_bytes, self._limits.body_values))
        except TimeoutError:
            message = f"The body did not arrive within {self._limits.body_seconds:g} s. Send it again."
            raise ProblemError.of(408, Reason.BODY_TOO_SLOW, message) from None
        except web.HTTPRequestEntityTooLarge:
            message = f"The body is larger than {self._limits.body_bytes} bytes. Send a smaller one."
            raise ProblemError.of(413, Reason.BODY_TOO_LARGE, message) from None
        except InputInvalid as error:
            raise BadRequest(str(error)) from None
        if not isinstance(requested, dict):
            raise BadRequest("the body must be a JSON object")
        return requested

    async def _exchange(self, group: LiveGroup, exchange: Exchange) -> web.Response:
        with self._groups.turn(group) as served:
            try:
                answers = await self._send_exchange(group, served, exchange)
            except GroupClosed:
                raise _unknown_group(group.id) from None
            except EngineRefused as refused:
                _record_refusal(group, exchange.rollouts, refusal_problem(refused.status, refused.data))
                return web.Response(status=refused.status, body=refused.data, content_type="application/json")
            if self._groups.get(group.id) is not group:
                raise _unknown_group(group.id)
            if group.record:
                self._record(group, served, exchange, answers)
            else:
                for one in exchange.rollouts[: len(answers)]:
                    group.record_answer(one.rollout, one.arrival)
        return _response(exchange, answers)

    async def _send_exchange(self, group: LiveGroup, served: ServedPolicy, exchange: Exchange) -> list[dict[str, Any]]:
        """Return one response per rollout, each with one choice. If requests of some rollouts failed, may return the
        responses of the first rollouts only, but of at least two. Raises EngineRefused and PromptTooLong.
        """
        if len(exchange.rollouts) == 1:
            continued = await self._send_continued(group, served, exchange)
            return [await self._send_whole(group, served, exchange) if continued is None else continued]
        answers: list[dict[str, Any]] = []
        # One long response of many choices would occupy the engine's HTTP server, which other runs may also use.
        if self._engines_take_n and (group.rules or self._rules).is_short(exchange.request_body):
            answers = split_choices(await self._send_whole(group, served, exchange))
            # Engines of a shared pool sample at most as many sequences as the run may have at the same time.
            self._engines_take_n = len(answers) == len(exchange.rollouts)
        missing = exchange.rollouts[len(answers) :]
        if missing:
            alone = replace(exchange, request_body=exchange.request_body | {"n": 1})
            sent = [self._send_whole(group, served, replace(alone, rollouts=[one])) for one in missing]
            for answer in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(answer, BaseException):
                    if len(answers) < 2:
                        raise answer
                    # The rollouts without a choice send requests of their own.
                    break
                answers.append(answer)
        return answers

    async def _send_whole(self, group: LiveGroup, served: ServedPolicy, exchange: Exchange) -> dict[str, Any]:
        """Send the client's request. If the engine refuses it, measure the prompt and send it again with a limit that
        fits, because engines refuse token limits and minimums that exceed the rest of their context. Raises
        EngineRefused and PromptTooLong.
        """
        kind, requested = exchange.kind, exchange.request_body
        status, data = await self._send(group, served, exchange, kind, requested)
        if status == 400:
            length = await self._tokenizer.count(group, served, kind, requested)
            if length is not None and (group.rules or self._rules).cuts(requested, length):
                status, data = await self._send(group, served, exchange, kind, requested, prompt_tokens=length)
        if status != 200:
            raise EngineRefused(status, data)
        return _read_answer(data)

    async def _send(
        self,
        group: LiveGroup,
        served: ServedPolicy,
        exchange: Exchange,
        kind: CompletionKind,
        requested: dict[str, Any],
        *,
        prompt_tokens: int | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> tuple[int, bytes]:
        first, rollouts = exchange.rollouts[0], len(exchange.rollouts)
        seed_key = SamplingSeedKey(group.ordinal, first.session.rollout_order, first.turn, group.record)
        outgoing = (group.rules or self._rules).to_engine_request(
            kind,
            requested,
            served.model,
            seed_key,
            rollouts=rollouts,
            prompt_tokens=prompt_tokens,
            prompt_ids=prompt_ids,
        )
        for name in set(replaced_fields(requested, outgoing)) - self._warned:
            self._warned.add(name)
            log.warning("%s in the environment's requests is replaced by the value in the run's sampling section", name)
        return await self._router.send(group, served, kind.value, _encode(outgoing).encode(), rollouts)

    async def _send_continued(
        self, group: LiveGroup, served: ServedPolicy, exchange: Exchange
    ) -> dict[str, Any] | None:
        """Return the response to a chat with the exact tokens of the conversation that it continues, or None if the
        chat must be sent unchanged.
        """
        if exchange.kind is not CompletionKind.chat or not group.record:
            return None
        kind, requested = exchange.kind, exchange.request_body
        check(kind, requested)
        known = exchange.rollouts[0].session.conversations
        exchange.continuation = await self._prefix_bridge.continuation(group, served, requested, known)
        if exchange.continuation is None or exchange.continuation.prompt is None:
            return None
        try:
            status, data = await self._send(
                group, served, exchange, kind, requested, prompt_ids=exchange.continuation.prompt
            )
        except PromptTooLong:
            return None
        # After a failure the chat is sent unchanged, so that the engine's error refers to what the client sent.
        answer: dict[str, Any] | None = _read_answer(data) if status == 200 else None
        return answer

    def _record(
        self, group: LiveGroup, served: ServedPolicy, exchange: Exchange, answers: Sequence[dict[str, Any]]
    ) -> None:
        # If one response is invalid, none is recorded, because the client gets none.
        turns = [parse_turn(exchange.kind, answer) for answer in answers]
        for one, answer, turn in zip(exchange.rollouts, answers, turns, strict=False):
            self._record_turn(group, served, exchange, one, answer, turn)

    def _record_turn(
        self,
        group: LiveGroup,
        served: ServedPolicy,
        exchange: Exchange,
        one: RolloutRequest,
        answer: dict[str, Any],
        turn: Turn,
    ) -> None:
        continued = exchange.continuation
        turn.version = served.policy.version
        # An engine that ignores `kv_transfer_params` renders the messages instead, and returns different prompt ids.
        turn.bridged = continued is not None and turn.prompt_ids == continued.prompt
        group.record_turn(one.rollout, one.arrival, turn)
        if turn.completion_ids:
            group.settle(served)
        if exchange.kind is not CompletionKind.chat:
            return
        if continued is not None:
            exact = has_prefix(turn.prompt_ids, continued.last.tokens)
            self._stats.prefixes["broken" if not exact else "bridged" if turn.bridged else "exact"] += 1
        made = conversation(exchange.request_body, answer["choices"][0], turn, continued, arrival=one.arrival)
        one.session.conversations.add(made)

    async def _models(self, request: web.Request) -> web.Response:
        try:
            group = self._group(request)
        except ProblemError as error:
            return _error(error.status, error.problem)
        model = {"id": group.model, "object": "model", "created": 0, "owned_by": "rlrun"}
        return web.json_response({"object": "list", "data": [model]})

    async def _environment(self, request: web.Request) -> web.Response:
        if not is_allowed(request.path, request.headers, self._package_token):
            return unauthorized_response()
        if self._packages is None:
            return json_response(Problem(reason=Reason.S3_UNREACHABLE, message="this gateway has no S3"), 503)
        names = request.match_info
        try:
            version, tar = await self._packages.tar(names["owner"], names["name"], request.query.get("version") or None)
        except PackageMissing as error:
            return json_response(error.problem, 404)
        except PackageChanged as error:
            return json_response(error.problem, CONFLICT)
        except StoreError as error:
            return json_response(error.problem, 503)
        headers = {"X-Environment-Version": version}
        return web.Response(body=tar, content_type="application/x-tar", headers=headers)


def _read_answer(data: bytes) -> dict[str, Any]:
    """Parse the engine's response. `parse_turn` validates the fields that are used. Raises InvalidEngineResponse."""
    try:
        answer: dict[str, Any] = read_fast(data, "the engine's response", ENGINE_LIMITS, allows_nan=True)
    except InputInvalid as error:
        raise InvalidEngineResponse(str(error)) from None
    return answer


def _record_refusal(group: LiveGroup, rollouts: Sequence[RolloutRequest], problem: Problem) -> None:
    for one in rollouts:
        group.record_refusal(one.rollout, one.arrival, problem)


def _response(exchange: Exchange, answers: Sequence[dict[str, Any]]) -> web.Response:
    requested = exchange.request_body
    if len(answers) == 1:
        headers, answer = {ROLLOUT_ID_HEADER: exchange.rollouts[0].rollout}, answers[0]
    else:
        headers, answer = {}, join_choices(answers)
    shown = strip_internal_fields(answer, requested)
    if requested.get("stream"):
        usage = bool((requested.get("stream_options") or {}).get("include_usage"))
        body = to_event_stream(exchange.kind, shown, include_usage=usage)
        return web.Response(body=body, content_type="text/event-stream", headers=headers)
    return web.Response(body=_encode(shown).encode(), content_type="application/json", headers=headers)


def _unknown_group(group_id: str) -> ProblemError:
    message = f"Group {group_id} does not exist or has ended. Stop sending requests for it; its results are discarded."
    return ProblemError.of(404, Reason.GROUP_UNKNOWN, message)


def _error(status: int, problem: Problem) -> web.Response:
    """Return an error in the format that OpenAI clients expect."""
    headers = {"Retry-After": "1"} if status == 429 else None
    body = {"error": {"message": problem.message, "type": problem.reason, "code": status}}
    return web.json_response(body, status=status, headers=headers)
