"""The page over HTTP: paths, caching, compression and the headers that protect it."""

from pathlib import Path

import httpx
import pytest
from rlrun_server.page.page_app import PageApp
from rlrun_server.page.page_files import PageFiles, load_page
from rlrun_server.rest.rest_app import rest_app
from starlette.types import ASGIApp

MAIN = "import './lib/api.js';\n" * 100
PROTECTION = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.fixture
def files(tmp_path: Path) -> PageFiles:
    static = tmp_path / "static"
    (static / "lib").mkdir(parents=True)
    (static / "index.html").write_text('<script type="importmap">{"imports": {}}</script><script src="main.js">')
    (static / "main.js").write_text(MAIN)
    (static / "lib/api.js").write_text("export {};")
    (tmp_path / "secret.js").write_text("secret")
    return load_page(static)


@pytest.fixture
def client(files: PageFiles) -> httpx.AsyncClient:
    app: ASGIApp = PageApp(files, rest_app())
    headers = {"Accept-Encoding": "identity"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server", headers=headers)


async def test_the_shell_is_asked_for_each_time(client: httpx.AsyncClient, files: PageFiles) -> None:
    answer = await client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert f"assets/{files.version}/main.js" in answer.text
    again = await client.get("/", headers={"If-None-Match": f'"x", W/{answer.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert (await client.get("/", headers={"If-None-Match": '"x"'})).status_code == 200


async def test_files_are_kept_for_good_under_the_address_of_their_version(
    client: httpx.AsyncClient, files: PageFiles
) -> None:
    answer = await client.get(f"/assets/{files.version}/main.js")
    assert answer.text == MAIN
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_files_of_another_version_are_not_kept(client: httpx.AsyncClient) -> None:
    """Another replica, during an upgrade, has served the shell."""
    answer = await client.get("/assets/0123456789abcdef/main.js")
    assert answer.text == MAIN
    assert answer.headers["cache-control"] == "no-cache"


async def test_compression_is_for_clients_that_read_it(client: httpx.AsyncClient, files: PageFiles) -> None:
    path = f"/assets/{files.version}/main.js"
    tags = set()
    for accepted, expected in (
        ("gzip, br", True), ("br;q=1.0, GZIP;q=0.8", True), ("gzip", True), ("", False), ("br", False),
        ("gzip;q=0", False), ("br, gzip; q=0.0", False), ("x-gzip", False),
    ):  # fmt: skip
        answer = await client.get(path, headers={"Accept-Encoding": accepted})
        assert (answer.headers.get("content-encoding") == "gzip") == expected, accepted
        assert answer.text == MAIN
        assert answer.headers["vary"] == "Accept-Encoding"
        tags.add(answer.headers["etag"])
    assert len(tags) == 2


async def test_every_response_of_the_page_is_protected(client: httpx.AsyncClient, files: PageFiles) -> None:
    for path in ("/", f"/assets/{files.version}/main.js"):
        for method in ("GET", "HEAD", "POST"):
            headers = (await client.request(method, path)).headers
            assert {name: headers[name] for name in PROTECTION} == PROTECTION
            policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == f"'self' '{files.script_hash}'"
            assert (policy["style-src"], policy["connect-src"]) == ("'self'", "'self'")
            assert (policy["base-uri"], policy["frame-ancestors"]) == ("'none'", "'none'")
            assert "unsafe" not in headers["content-security-policy"]
            assert "camera=()" in headers["permissions-policy"]
            assert "access-control-allow-origin" not in headers


async def test_head_has_no_body_and_other_methods_are_refused(client: httpx.AsyncClient) -> None:
    head = await client.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 0
    answer = await client.post("/")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "/assets/{version}/../secret.js", "/assets/{version}/..%2fsecret.js", "/assets/{version}/%2e%2e/secret.js",
        "/assets/{version}/", "/assets/{version}", "/assets/", "/assets/{version}//main.js", "/assets//main.js/x",
        "/assets/{version}/lib", "/assets/{version}/index.html", "/assets/{version}/main.js/", "/secret.js",
        "/assets/{version}/\\..\\secret.js", "/assets/{version}/main.js%00", "/rlrun/v1/nothing", "/api/v1/nothing",
        "/v1/nothing", "/data/v1/nothing", "/index.html", "/favicon.ico",
    ],
)  # fmt: skip
async def test_other_paths_are_problems(client: httpx.AsyncClient, files: PageFiles, path: str) -> None:
    answer = await client.get(path.format(version=files.version))
    assert (answer.status_code, answer.json()["reason"]) == (404, "ObjectNotFound")
    assert "secret" not in answer.json()["detail"]
