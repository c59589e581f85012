"""The rollout gateway: an OpenAI API for the environments that notes every token it passes on.

    /groups/{group}/v1/chat/completions, /completions, /models
    /groups/{group}/rollouts/{rollout}/v1/...       the same for clients that cannot send X-Rollout-Id
    /environments/{owner}/{name}?version=           tar of wheels

Any OpenAI client works unchanged: it gets the API it knows, and what the trainer needs never passes through user code.
A request that names no rollout is a rollout of its own, under an id that the answer's X-Rollout-Id tells; a client
that wants several turns in one rollout has to send one.
"""

import json
import logging
from typing import Any

from aiohttp import web
from rlrun.schema.wire import ROLLOUT_ID_HEADER, Problem

from rlrun_orchestrator.gateway.answers import UnusableAnswer, client_answer, event_stream, read_turn
from rlrun_orchestrator.gateway.groups import LiveGroup, LiveGroups
from rlrun_orchestrator.gateway.packages import PackageMissing, Packages, StoreError
from rlrun_orchestrator.gateway.routing import GroupGone, NoReplica, Router
from rlrun_orchestrator.gateway.sampling import BadRequest, Kind, SamplingRules

log = logging.getLogger(__name__)

MAX_BODY = 64 * 1024**2
MAX_ROLLOUT_ID = 200


class Gateway:
    """The routes. `packages` is None where no S3 is at hand (tests)."""

    def __init__(self, groups: LiveGroups, rules: SamplingRules, router: Router, packages: Packages | None) -> None:
        self._groups = groups
        self._rules = rules
        self._router = router
        self._packages = packages
        self._ordinal = 0

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY)
        for prefix in ("/groups/{group}/v1", "/groups/{group}/rollouts/{rollout}/v1"):
            app.router.add_post(f"{prefix}/chat/completions", self._chat)
            app.router.add_post(f"{prefix}/completions", self._text)
            app.router.add_get(f"{prefix}/models", self._models)
        app.router.add_get("/environments/{owner}/{name}", self._environment)
        return app

    async def _chat(self, request: web.Request) -> web.Response:
        return await self._complete(request, Kind.chat)

    async def _text(self, request: web.Request) -> web.Response:
        return await self._complete(request, Kind.text)

    async def _complete(self, request: web.Request, kind: Kind) -> web.Response:
        group = self._groups.get(request.match_info["group"])
        if group is None:
            return _unknown_group()
        place = group.arrived()
        rollout = request.match_info.get("rollout") or request.headers.get(ROLLOUT_ID_HEADER) or f"request-{place}"
        try:
            asked = json.loads(await request.read())
            if not isinstance(asked, dict):
                raise BadRequest("the body must be a JSON object")
            self._ordinal += 1
            outgoing = self._rules.upstream(kind, asked, group.policy.name, self._ordinal)
        except (BadRequest, json.JSONDecodeError, UnicodeDecodeError) as error:
            return _error(400, "invalid_request_error", str(error))
        if len(rollout) > MAX_ROLLOUT_ID:
            return _error(400, "invalid_request_error", f"{ROLLOUT_ID_HEADER} is longer than {MAX_ROLLOUT_ID}")
        try:
            status, data = await self._router.ask(group, kind, json.dumps(outgoing, separators=(",", ":")).encode())
        except GroupGone:
            return _unknown_group()
        except NoReplica as error:
            return _error(503, error.problem.reason, error.problem.message)
        if status != 200:
            return web.Response(status=status, body=data, content_type="application/json")
        return self._answer(group, rollout, place, kind, asked, json.loads(data))

    def _answer(
        self, group: LiveGroup, rollout: str, place: int, kind: Kind, asked: dict[str, Any], answer: dict[str, Any]
    ) -> web.Response:
        if group.record:
            try:
                turn = read_turn(kind, answer)
            except UnusableAnswer as error:
                log.error("%s", error)
                return _error(502, "InferenceAnswerUnusable", str(error))
            group.note(rollout, place, turn)
        headers = {ROLLOUT_ID_HEADER: rollout}
        shown = client_answer(answer, asked)
        if asked.get("stream"):
            usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            body = event_stream(kind, shown, include_usage=usage)
            return web.Response(body=body, content_type="text/event-stream", headers=headers)
        body = json.dumps(shown, separators=(",", ":")).encode()
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _models(self, request: web.Request) -> web.Response:
        group = self._groups.get(request.match_info["group"])
        if group is None:
            return _unknown_group()
        model = {"id": group.policy.name, "object": "model", "created": 0, "owned_by": "rlrun"}
        return web.json_response({"object": "list", "data": [model]})

    async def _environment(self, request: web.Request) -> web.Response:
        if self._packages is None:
            return _problem(503, Problem(reason="S3Unreachable", message="this gateway has no S3"))
        place = request.match_info
        try:
            version, tar = await self._packages.tar(place["owner"], place["name"], request.query.get("version") or None)
        except PackageMissing as error:
            return _problem(404, error.problem)
        except StoreError as error:
            return _problem(503, error.problem)
        headers = {"X-Environment-Version": version}
        return web.Response(body=tar, content_type="application/x-tar", headers=headers)


def _unknown_group() -> web.Response:
    return _error(404, "GroupUnknown", "no such group, or it has ended: its answers are of no use any more")


def _error(status: int, kind: str, message: str) -> web.Response:
    """An error as OpenAI clients expect it."""
    return web.json_response({"error": {"message": message, "type": kind, "code": status}}, status=status)


def _problem(status: int, problem: Problem) -> web.Response:
    return web.json_response(problem.to_json_dict(), status=status)
