"""Whatever a tenant writes is text on the page: run, status, environment, metrics and rollouts."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import HOSTILE, LEARNING, ODD, Server
from tests.support.browser import WatchedPage

SEEN = {
    "": "window.hacked=1",
    "samples": "onerror=window.hacked=1",
    "samples?step=8&group=g8-0": "onerror=window.hacked=1",
    "events": "window.hacked=1",
    "config": "window.hacked=1",
}
"""Views of the run, and a part of the text that each must show as it is."""


def check_nothing_ran(watched: WatchedPage) -> None:
    found = watched.page.evaluate(
        "[window.hacked, document.querySelectorAll('img[src=x], [onload], [onerror], main script').length]"
    )
    assert found == [None, 0]


@pytest.mark.parametrize("view", SEEN, ids=lambda view: view or "charts")
def test_a_hostile_run_is_shown_as_text(editor: WatchedPage, server: Server, view: str) -> None:
    editor.open(server.view(ODD, view) if view else server.view(ODD))
    expect(editor.page.locator("main").get_by_text(SEEN[view]).first).to_be_visible()
    editor.page.wait_for_load_state("networkidle")
    check_nothing_ran(editor)


@pytest.mark.smoke
def test_a_hostile_run_in_the_lists(editor: WatchedPage, server: Server) -> None:
    editor.open("/runs")
    expect(editor.page.get_by_role("link", name=LEARNING)).to_be_visible()
    check_nothing_ran(editor)
    editor.open(f"/compare?run={server.namespace}/{LEARNING}&run={server.namespace}/{ODD}")
    expect(editor.page.get_by_text("window.hacked=1").first).to_be_visible()
    editor.page.wait_for_load_state("networkidle")
    check_nothing_ran(editor)


@pytest.mark.parametrize(
    "address",
    [
        f"/runs/{HOSTILE}/{HOSTILE}",
        f"/{HOSTILE}",
        "/login?next=javascript:window.hacked=1",
        "/login?next=//evil.org",
        f"/runs?q={HOSTILE}&ns={HOSTILE}&sort={HOSTILE}&shown={HOSTILE}",
    ],
    ids=["run", "view", "script", "site", "query"],
)
def test_a_hostile_address_runs_nothing(editor: WatchedPage, server: Server, address: str) -> None:
    for status in (400, 404):
        editor.expect(status, "/rlrun/v1/")
    editor.open(address)
    expect(editor.page.locator("main")).not_to_be_empty()
    editor.page.wait_for_load_state("networkidle")
    check_nothing_ran(editor)
    if address.startswith("/login"):
        editor.page.get_by_label("Kubernetes token or API key").fill(server.tokens["editor"])
        editor.page.get_by_role("button", name="Log in").click()
        editor.page.wait_for_load_state("networkidle")
        check_nothing_ran(editor)
        assert editor.page.url.startswith(server.url)
