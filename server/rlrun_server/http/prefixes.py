"""Dispatch to applications by the first segment of the path."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class ByPrefix:
    """Passes a request to the application of its prefix, and all others on."""

    def __init__(self, apps: Mapping[str, ASGIApp], others: ASGIApp) -> None:
        """`apps`: by prefix, for example `/v1`. They see the whole path."""
        self._apps = apps
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        path = str(scope.get("path", ""))
        for prefix, app in self._apps.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                await app(scope, receive, send)
                return
        await self._others(scope, receive, send)
