"""Time until a view is usable: when the data is there, not when the page is."""

import pytest
from aiohttp import web

from bench.server.page import View, compare_view, measure_page
from bench.server.results import of_page
from tests.lab.bench.server.served import served

PAGE = """<!doctype html><title>test</title><body><script>
setTimeout(() => { for (let n = 0; n < 3; n++) document.body.append(document.createElement("canvas")); }, DELAY);
setTimeout(() => { const end = performance.now() + BUSY; while (performance.now() < end); }, DELAY + 1);
</script>"""


def test_the_address_of_a_comparison() -> None:
    found = compare_view("http://server", ["team/a", "team/b"], 8)
    assert found == View("http://server/#/compare?run=team%2Fa&run=team%2Fb", "canvas", 8)


@pytest.mark.slow
@pytest.mark.parametrize(("delay", "busy"), [(1200, 0), (0, 1200)])
def test_a_slow_page_is_seen(delay: int, busy: int) -> None:
    text = PAGE.replace("DELAY", str(delay)).replace("BUSY", str(busy))
    logins: list[str] = []

    async def show(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type="text/html")

    async def login(request: web.Request) -> web.Response:
        logins.append((await request.json())["token"])
        return web.json_response({})

    with served(web.get("/", show), web.post("/session", login)) as url:
        seconds = measure_page(View(url, "canvas", 3), f"{url}/session", "token", 1)
    assert len(seconds) == 1
    assert seconds[0] >= 1.2
    assert logins == ["token"] * 2
    row = of_page(seconds, 10, 1000, 3, [0.1])
    assert row.aim is not None
    assert not row.aim.met_by(row.ratio)


@pytest.mark.slow
def test_a_refused_login_is_no_fast_page() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=401)

    with served(web.post("/session", refuse)) as url, pytest.raises(RuntimeError, match="401"):
        measure_page(View(url, "canvas", 3), f"{url}/session", "token", 1)
