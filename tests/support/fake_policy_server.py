"""Trainer as a sidecar sees it that cannot reach S3: the routes of its newest policies."""

import hashlib
from datetime import UTC, datetime

from aiohttp import web
from rlrun.protocol.inference import LoadRequest
from rlrun.protocol.policy import PolicyRef
from rlrun.storage.layout import ADAPTER_WEIGHTS, MANIFEST
from rlrun.storage.manifest import ArtifactKind, FileEntry, Manifest


def manifest_of(weights: bytes) -> Manifest:
    """Of a policy with nothing but weights."""
    entry = FileEntry(name=ADAPTER_WEIGHTS, size=len(weights), sha256=hashlib.sha256(weights).hexdigest())
    return Manifest(kind=ArtifactKind.policy, files=[entry], created_at=datetime.now(UTC))


class FakePolicyServer:
    """The trainer's newest policies, which it keeps in memory."""

    def __init__(self) -> None:
        self.policies: dict[str, bytes] = {}
        self.url = ""
        self.tampered = False
        self.endless = False
        """Weights never end."""
        self.manifest: Manifest | None = None
        """Instead of the right one."""
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        """Header `Authorization` of each request."""
        self.redirected = ""
        """Name of the file that is served at another URL."""

    def publish(self, version: int, weights: bytes) -> LoadRequest:
        digest = hashlib.sha256(weights).hexdigest()
        ref = PolicyRef(version=version, digest=digest, uri=f"s3://bucket/run/policy/v{version:06d}-{digest[:8]}")
        self.policies[ref.name] = weights
        return self.load_of(ref)

    def load_of(self, ref: PolicyRef) -> LoadRequest:
        return LoadRequest(**ref.model_dump(), fallback=f"{self.url}/sessions/u/policies/{ref.name}")

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/sessions/u/policies/{policy}/{file:.+}", self._file)
        app.router.add_get("/elsewhere/{policy}/{file:.+}", self._content)
        return app

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name, file = request.match_info["policy"], request.match_info["file"]
        self.asked.append(file)
        self.authorizations.append(request.headers.get("Authorization"))
        if file == self.redirected:
            return web.Response(status=302, headers={"Location": f"/elsewhere/{name}/{file}"})
        return await self._content(request)

    async def _content(self, request: web.Request) -> web.StreamResponse:
        name, file = request.match_info["policy"], request.match_info["file"]
        if name not in self.policies:
            return web.json_response({"reason": "PolicyMissing", "message": "gone"}, status=404)
        weights = self.policies[name]
        if file == MANIFEST:
            return web.Response(text=(self.manifest or manifest_of(weights)).model_dump_json(by_alias=True))
        if self.endless:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(weights)
        return web.Response(body=weights[:-1] if self.tampered else weights)
