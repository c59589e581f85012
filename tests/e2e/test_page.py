"""The web page in Chromium, with real runs: one is watched from begin to end, and compared with another."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from demo.watch import follow
from tests.e2e.conftest import SECONDS, Platform
from tests.e2e.server_clients import api_key, server_on_loopback
from tests.support.browser import WatchedPage, chromium, watched_page

STEPS = 8
RUN, OTHER = "watched", "slow-learner"
WAIT_MS = SECONDS * 1000
PICTURES = Path(__file__).parents[2] / "build" / "page"


@pytest.fixture(scope="module")
def namespace(module_namespace: Callable[[str], str]) -> str:
    return module_namespace("page")


@pytest.fixture(scope="module")
def user(platform: Platform, namespace: str) -> Iterator[WatchedPage]:
    """A user of the namespace who has logged in with an API key."""
    key = api_key(platform.kubectl, namespace)
    with (
        server_on_loopback(platform.kubectl) as url,
        chromium() as browser,
        watched_page(browser, url, viewport={"width": 1280, "height": 1000}) as found,
    ):
        found.log_in(key)
        yield found


def keep_picture(user: WatchedPage, name: str) -> None:
    """Write a picture of the view for whoever looks at a failure."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    user.page.screenshot(path=PICTURES / f"{name}.png")


def test_a_run_is_watched_its_rollouts_are_read_and_two_are_compared(
    platform: Platform, namespace: str, user: WatchedPage
) -> None:
    page = user.page
    platform.kubectl.apply(platform.run_object(RUN, namespace, maxSteps=STEPS))
    platform.kubectl.apply(platform.run_object(OTHER, namespace, maxSteps=4, learningRate=1e-6))

    user.open(f"/runs?ns={namespace}")
    expect(page.get_by_role("link", name=RUN)).to_be_visible()
    page.get_by_role("link", name=RUN).click()
    expect(page.get_by_text("Pending").first).to_be_visible()
    expect(page.get_by_text("Running").first).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text(f"step {STEPS}/{STEPS}")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator("[aria-live=polite]").first).to_contain_text("The run is now completed", timeout=WAIT_MS)
    expect(page.get_by_role("img", name=re.compile("Reward")).first).to_be_visible()
    user.check_accessibility()
    keep_picture(user, "run")

    user.open(f"/runs/{namespace}/{RUN}/samples?step={STEPS}")
    expect(page.get_by_role("article").first).to_contain_text("reversed_similarity")
    user.check_accessibility()
    keep_picture(user, "samples")

    follow(platform.kubectl, OTHER, namespace, SECONDS)
    user.open(f"/compare?run={namespace}/{RUN}&run={namespace}/{OTHER}")
    expect(page.get_by_text("learningRate").first).to_be_visible()
    user.check_accessibility()
    keep_picture(user, "compare")
