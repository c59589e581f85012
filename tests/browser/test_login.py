"""Login, logout, and what other pages can do with the session."""

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import LEARNING, Server
from tests.support.browser import WatchedPage, watched_page

COOKIE = "rlrun-session"


@pytest.mark.smoke
def test_a_user_logs_in_and_out(watched: WatchedPage, server: Server) -> None:
    watched.expect(401, "/rlrun/v1/")
    watched.open("/runs")
    expect(watched.page.get_by_role("heading", name="Log in")).to_be_visible()
    watched.check_accessibility()
    watched.log_in(server.tokens["viewer"])
    expect(watched.page.get_by_role("link", name=LEARNING)).to_be_visible()
    (cookie,) = watched.page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (COOKIE, True, "Strict")
    assert server.tokens["viewer"] not in cookie["value"]
    assert watched.page.evaluate("document.cookie") == ""
    watched.page.reload()
    expect(watched.page.get_by_role("link", name=LEARNING)).to_be_visible()
    watched.expect(401, "/rlrun/v1/")
    watched.page.get_by_role("link", name="Log out").click()
    expect(watched.page.get_by_role("heading", name="Log in")).to_be_visible()
    assert watched.page.context.cookies() == []


def test_a_wrong_token_says_so(watched: WatchedPage) -> None:
    watched.expect(401, "/rlrun/v1/")
    watched.open("/login")
    watched.page.get_by_label("Kubernetes token or API key").fill("not-a-token")
    watched.page.get_by_role("button", name="Log in").click()
    expect(watched.page.get_by_text("does not accept the token")).to_be_visible()
    watched.check_accessibility()


def test_a_code_of_the_command_line_logs_in_once(browser: Browser, server: Server) -> None:
    headers = {"Authorization": f"Bearer {server.tokens['viewer']}"}
    code = httpx.post(f"{server.url}/rlrun/v1/session:code", headers=headers).json()["code"]
    with watched_page(browser, server.url) as first:
        first.page.goto(f"{server.url}/#login={code}")
        expect(first.page.get_by_role("link", name=LEARNING)).to_be_visible()
        assert code not in first.page.url
    with watched_page(browser, server.url) as second:
        second.expect(401, "/rlrun/v1/")
        second.page.goto(f"{server.url}/#login={code}")
        expect(second.page.get_by_text("login code has been used")).to_be_visible()


def test_another_site_changes_nothing_and_reads_nothing(editor: WatchedPage, server: Server) -> None:
    """A page of another host in the same browser: its requests are refused by the browser, or by the server."""
    page = editor.page
    path = f"{server.url}/rlrun/v1/namespaces/{server.namespace}/runs/{LEARNING}"
    other = server.url.replace("127.0.0.1", "localhost")
    page.route(f"{other}/evil", lambda route: route.fulfill(body="<p>evil</p>", content_type="text/html"))
    page.goto(f"{other}/evil")
    send = """async ([url, method, headers]) => {
        try {
            const mode = headers ? "cors" : "no-cors";
            const answer = await fetch(url, {method, headers, credentials: "include", mode});
            return `${answer.type} ${answer.status}`;
        } catch (error) { return error.name; }
    }"""
    statuses: list[int] = []
    page.on("response", lambda response: statuses.append(response.status))
    for method, headers in (("POST", None), ("DELETE", {"X-Rlrun": "1"}), ("GET", {"Accept": "application/json"})):
        target = f"{path}:stop" if method == "POST" else path
        assert page.evaluate(send, [target, method, headers]) in ("opaque 0", "TypeError")
    assert not [status for status in statuses if status < 400], "a request of another site was answered"
    found = httpx.get(path, headers={"Authorization": f"Bearer {server.tokens['viewer']}"}).json()
    assert not found["spec"].get("stop")
    editor.problems.clear()


@pytest.mark.parametrize("headers", [{}, {"X-Rlrun": "1", "Origin": "https://evil.org"}], ids=str)
def test_a_stolen_way_to_the_server_needs_the_headers_of_the_page(
    editor: WatchedPage, server: Server, headers: dict[str, str]
) -> None:
    (cookie,) = editor.page.context.cookies()
    path = f"{server.url}/rlrun/v1/namespaces/{server.namespace}/runs/{LEARNING}:stop"
    answer = httpx.post(path, headers={**headers, "Cookie": f"{cookie['name']}={cookie['value']}"})
    assert (answer.status_code, answer.json()["reason"]) == (403, "CrossSiteRequest")


def test_the_page_cannot_be_framed_and_runs_no_inline_script(editor: WatchedPage) -> None:
    headers = httpx.get(editor.url).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    ran = editor.page.evaluate(
        """() => {
            const script = document.createElement("script");
            try { script.textContent = "window.hacked = 1"; } catch (error) { return error.name; }
            document.body.append(script);
            return window.hacked ?? "refused";
        }"""
    )
    assert ran in ("TypeError", "refused")
    assert editor.problems, "the fixture notices violations of the policy"
    editor.problems.clear()
