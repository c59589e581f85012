"""HTTP application that serves the page: its shell at `/`, and its files below `/assets/`."""

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rlrun_server.http.request import has_tag
from rlrun_server.page.page_files import ASSETS, PageFile, PageFiles

PREFIX = f"/{ASSETS}/"
METHODS = "GET, HEAD"
FOR_GOOD = "public, max-age=31536000, immutable"
ASK_EACH_TIME = "no-cache"
GZIP = re.compile(r"(^|,)\s*gzip\s*(?!\s*;\s*q=0(\.0*)?\s*(,|$))(,|;|$)", re.IGNORECASE)
FEATURES = (
    "accelerometer", "autoplay", "camera", "display-capture", "encrypted-media", "fullscreen", "geolocation",
    "gyroscope", "hid", "idle-detection", "magnetometer", "microphone", "midi", "payment",
    "publickey-credentials-get", "screen-wake-lock", "serial", "usb", "web-share", "xr-spatial-tracking",
)  # fmt: skip
"""Browser features that the page does not use, and disables with the header `Permissions-Policy`."""


def security_headers(script_hash: str) -> dict[str, str]:
    """Return the headers of all responses of the page. `script_hash` is the hash of its import map, or empty."""
    inline = f" '{script_hash}'" if script_hash else ""
    policy = {
        "default-src": "'none'",
        "script-src": f"'self'{inline}",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
        # Text is never interpreted as markup or code, even if a module has a bug.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Permissions-Policy": ", ".join(f"{feature}=()" for feature in FEATURES),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


class PageApp:
    """Application that serves the page and forwards all other requests."""

    def __init__(self, page: PageFiles, others: ASGIApp) -> None:
        self._page = page
        self._others = others
        self._headers = security_headers(page.script_hash)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""
        page_file = self._find(scope["path"]) if scope["type"] == "http" else None
        if page_file is None:
            await self._others(scope, receive, send)
            return
        file, caching = page_file
        if scope["method"] in ("GET", "HEAD"):
            response = self._response(Request(scope), file, caching)
        else:
            response = Response("405: Method Not Allowed", 405, {"Allow": METHODS, **self._headers}, "text/plain")
        await response(scope, receive, send)

    def _find(self, path: str) -> tuple[PageFile, str] | None:
        """Return the file and its `Cache-Control` header, or None for a path that does not belong to the page."""
        if path == "/":
            return self._page.shell, ASK_EACH_TIME
        if not path.startswith(PREFIX):
            return None
        version, _, name = path.removeprefix(PREFIX).partition("/")
        file = self._page.assets.get(name)
        if file is None:
            return None
        # During an upgrade, a replica of another version may have served the shell. Its address of this file contains
        # that version, and browsers must not cache this version's content under that address.
        return file, FOR_GOOD if version == self._page.version else ASK_EACH_TIME

    def _response(self, request: Request, file: PageFile, caching: str) -> Response:
        is_compressed = file.compressed is not None and _accepts_gzip(request)
        tag = f'"{file.tag}{"-gzip" if is_compressed else ""}"'
        headers = {**self._headers, "ETag": tag, "Cache-Control": caching, "Vary": "Accept-Encoding"}
        if has_tag(request, tag):
            return Response(status_code=304, headers=headers)
        content = file.content
        if is_compressed and file.compressed is not None:
            content, headers["Content-Encoding"] = file.compressed, "gzip"
        headers["Content-Length"] = str(len(content))
        headers["Content-Type"] = file.media_type
        return Response(b"" if request.method == "HEAD" else content, headers=headers)


def _accepts_gzip(request: Request) -> bool:
    return GZIP.search(request.headers.get("Accept-Encoding", "")) is not None
