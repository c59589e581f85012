"""Each view of the page: what it shows, its accessibility, small and dark screens."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import FAILED, LEARNING, OTHER, STEPS, Server
from tests.support.browser import WatchedPage

VIEWS = ("runs", "charts", "samples", "events", "logs", "config", "artifacts", "compare")
MAX_SCRIPT = 100_000
"""Bytes of script until the list of runs is there, compressed."""


def show(watched: WatchedPage, server: Server, view: str) -> None:
    """Show a view, and wait until it has its data."""
    page = watched.page
    if view == "runs":
        watched.open("/runs")
        expect(page.get_by_role("link", name=LEARNING)).to_be_visible()
    elif view == "compare":
        runs = "&".join(f"run={server.namespace}/{name}" for name in (LEARNING, OTHER))
        watched.open(f"/compare?{runs}")
        expect(page.get_by_text("maxSteps").first).to_be_visible()
    elif view == "artifacts":
        watched.open(f"/artifacts?ns={server.namespace}")
        expect(page.get_by_text(f"{LEARNING}-40").first).to_be_visible()
    else:
        if view == "logs":
            watched.expect(404, "/logs")
        watched.open(server.view(LEARNING, *([] if view == "charts" else [view])))
        expect(page.get_by_role("heading", name=LEARNING).first).to_be_visible()
        if view == "charts":
            expect(page.get_by_role("img", name=re.compile("Reward")).first).to_be_visible()
        elif view == "samples":
            expect(page.get_by_text("Reverse:").first).to_be_visible()
    page.wait_for_load_state("networkidle")


@pytest.mark.smoke
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_accessible(editor: WatchedPage, server: Server, view: str) -> None:
    show(editor, server, view)
    editor.check_accessibility()


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}], ids=["dark"])
@pytest.mark.parametrize("view", ["runs", "charts", "samples", "compare"])
def test_a_view_is_readable_in_the_dark(editor: WatchedPage, server: Server, view: str) -> None:
    show(editor, server, view)
    background = editor.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in re.findall(r"\d+", background)[:3]) < 80
    editor.check_accessibility()


@pytest.mark.parametrize("options", [{"viewport": {"width": 360, "height": 740}, "has_touch": True}], ids=["small"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_a_telephone(editor: WatchedPage, server: Server, view: str) -> None:
    show(editor, server, view)
    assert editor.fits_width()
    editor.check_accessibility()


@pytest.mark.parametrize("options", [{"viewport": {"width": 360, "height": 740}, "has_touch": True}], ids=["small"])
def test_a_telephone_shows_the_progress_of_a_run(editor: WatchedPage, server: Server) -> None:
    show(editor, server, "charts")
    box = editor.page.locator(".run-progress progress").bounding_box()
    assert box is not None
    assert box["height"] >= 6
    assert box["width"] > 250


@pytest.mark.parametrize("options", [{"viewport": {"width": 360, "height": 740}, "has_touch": True}], ids=["small"])
def test_a_telephone_shows_the_rewards_of_runs_without_scrolling(editor: WatchedPage, server: Server) -> None:
    show(editor, server, "runs")
    for cell in editor.page.locator("td.reward").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 350


def test_a_comparison_names_charts_as_a_run_does_and_begins_with_what_differs(
    editor: WatchedPage, server: Server
) -> None:
    show(editor, server, "compare")
    page = editor.page
    for title in ("Reward", "Reward: validation", "Loss", "Entropy"):
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    titles = page.locator("main h2, main h3").all_inner_texts()
    assert titles.index("Configuration: 1 difference") < titles.index("Reward")


def test_a_failed_run_says_why(editor: WatchedPage, server: Server) -> None:
    editor.open(server.view(FAILED))
    expect(editor.page.get_by_text("EnvironmentLoadFailed").first).to_be_visible()
    expect(editor.page.get_by_text("has no load_environment").first).to_be_visible()
    editor.check_accessibility()


def test_the_newest_numbers_are_shown(editor: WatchedPage, server: Server) -> None:
    editor.open(server.view(LEARNING))
    expect(editor.page.get_by_text(re.compile(rf"{STEPS}\s*/\s*100")).first).to_be_visible()
    expect(editor.page.get_by_label("Newest numbers")).to_contain_text("Throughput")


def test_the_way_from_a_step_to_a_rollout(editor: WatchedPage, server: Server) -> None:
    page = editor.page
    editor.open(server.view(LEARNING, "samples?step=40"))
    expect(page.get_by_text("Reverse:").first).to_be_visible()
    page.keyboard.press("[")
    expect(page).to_have_url(re.compile("step=8"))
    page.keyboard.press("J")
    expect(page).to_have_url(re.compile("group="))
    address = page.url
    page.reload()
    expect(page.get_by_text("Reverse:").first).to_be_visible()
    assert page.url == address, "the address holds the view"


def test_the_keyboard_alone_reaches_everything(editor: WatchedPage, server: Server) -> None:
    page = editor.page
    editor.open("/runs")
    expect(page.get_by_role("link", name=LEARNING)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    editor.check_accessibility()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("j")
    expect(page.locator("tbody tr").first.get_by_role("link").first).to_be_focused()
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("c")
    expect(page).to_have_url(re.compile("compare"))
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("reverse")
    expect(page).to_have_url(re.compile("q=reverse"))
    expect(page.get_by_role("link", name=OTHER)).to_have_count(0)
    seen = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.ariaLabel || ''"))
    assert LEARNING in " ".join(seen)


@pytest.mark.smoke
def test_an_editor_stops_a_run(editor: WatchedPage, server: Server) -> None:
    page = editor.page
    editor.open(server.view(OTHER))
    expect(page.get_by_role("heading", name=OTHER).first).to_be_visible()
    # The run has ended: there is nothing to stop.
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    editor.open(server.view(LEARNING))
    stop = page.get_by_role("button", name="Stop").first
    expect(stop).to_be_visible()
    stop.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    editor.check_accessibility()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_viewer_is_told_what_is_missing(watched: WatchedPage, server: Server) -> None:
    watched.log_in(server.tokens["stranger"])
    expect(watched.page.get_by_text("No runs yet")).to_be_visible()
    watched.check_accessibility()
    watched.expect(404, f"/namespaces/{server.namespace}/")
    watched.open(server.view(LEARNING))
    expect(watched.page.get_by_text("does not exist, or you may not").first).to_be_visible()
    watched.check_accessibility()


def test_the_first_view_needs_little_script(watched: WatchedPage, server: Server) -> None:
    watched.log_in(server.tokens["viewer"])
    sizes: list[int] = []

    def count(response: object) -> None:
        if response.request.resource_type == "script":  # type: ignore[attr-defined]
            sizes.append(int(response.headers.get("content-length", 0)))  # type: ignore[attr-defined]

    watched.page.on("response", count)
    watched.page.context.clear_cookies()
    watched.expect(401, "/rlrun/v1/")
    watched.page.goto("about:blank")
    with watched.page.expect_response(lambda response: "/whoami" in response.url):
        watched.open("/runs")
    assert 0 < sum(sizes) <= MAX_SCRIPT
