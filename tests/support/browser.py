"""The distribution's Chromium, and pages in it that fail a test for what a user would not see."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from local_cluster.host import versions
from local_cluster.host.paths import paths
from local_cluster.tools.host_packages import ensure_system_packages

CHROMIUM = versions.BROWSER_PACKAGES["chromium"]
TIMEOUT_MS = 30_000
"""Longest wait for an element. The machine may be busy."""
REPORTED = ("serious", "critical")
FAILED_REQUEST = "Failed to load resource: the server responded with a status of"
"""Chromium's message about a response, which is checked by its status instead."""
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""Chromium ends all its requests, those to this machine too, when an interface comes or goes: each pod here has one."""
MAX_LOADS = 10


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser. Installs it on a machine without one."""
    ensure_system_packages(paths().cache, versions.BROWSER_PACKAGES)
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        # Its sandbox needs user namespaces, which containers lack. The pages are the project's own.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class WatchedPage:
    """A page whose errors are kept."""

    page: Page
    url: str
    """Address of the server."""
    problems: list[str] = field(default_factory=list)
    expected: list[tuple[int, str]] = field(default_factory=list)
    """Statuses of responses that the test expects, and a part of their URL."""
    lost_files: int = 0
    """Scripts and styles whose requests ended because the machine's network had changed."""

    def expect(self, status: int, url: str) -> None:
        """Accept responses with this status to URLs that contain `url`."""
        self.expected.append((status, url))

    def open(self, view: str = "/runs") -> None:
        """Show a view, as a reload of its address would."""
        for _ in range(MAX_LOADS):
            lost = self.lost_files
            try:
                self.page.goto("about:blank")
                self.page.goto(f"{self.url}/#{view}", wait_until="load")
            except Error as error:
                if NETWORK_CHANGED not in str(error):
                    raise
                continue
            if self.lost_files == lost:
                return

    def log_in(self, token: str, view: str = "/runs") -> None:
        """Log in by the form, and show a view."""
        self.expect(401, "/rlrun/v1/")
        self.open("/login")
        self.page.get_by_label("Kubernetes token or API key").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("heading", name="Runs", exact=True).wait_for()
        self.expected.remove((401, "/rlrun/v1/"))
        if view != "/runs":
            self.open(view)

    def check_accessibility(self) -> None:
        """Fail for findings of axe that keep people from using the page."""
        # Colours in the middle of a transition are not those that are read.
        self.page.wait_for_timeout(300)
        found = Axe().run(self.page).response["violations"]
        serious = [f"{each['id']}: {_nodes(each)}" for each in found if each["impact"] in REPORTED]
        assert not serious, "\n".join(serious)

    def fits_width(self) -> bool:
        """Return whether the page has no horizontal scroll bar."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))

    def on_console(self, message: ConsoleMessage) -> None:
        """Keep an error that the browser or the page reports, violations of the Content-Security-Policy too."""
        ignored = message.text.startswith(FAILED_REQUEST) or NETWORK_CHANGED in message.text
        if message.type == "error" and not ignored:
            self.problems.append(f"console: {message.text}")

    def on_failed_request(self, request: Request) -> None:
        """Count a file of the page that was lost with the machine's network."""
        self.lost_files += request.failure == NETWORK_CHANGED and request.resource_type in ("script", "stylesheet")

    def on_response(self, response: Response) -> None:
        """Keep an error of the server that the test does not expect."""
        if response.status >= 400 and not any(
            response.status == status and url in response.url for status, url in self.expected
        ):
            self.problems.append(f"{response.request.method} {response.url}: {response.status}")
        if not response.url.startswith(self.url):
            self.problems.append(f"another host was asked: {response.url}")


def _nodes(violation: dict[str, Any]) -> str:
    return "; ".join(f"{node['html'][:160]} ({node.get('failureSummary', '')})" for node in violation["nodes"][:3])


@contextmanager
def watched_page(browser: Browser, url: str, **options: Any) -> Iterator[WatchedPage]:
    """Open a page in a profile of its own. Raises AssertionError at the end if anything went wrong in it."""
    context: BrowserContext = browser.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    watched = WatchedPage(page, url)
    page.on("console", watched.on_console)
    page.on("pageerror", lambda error: watched.problems.append(f"page error: {error}"))
    page.on("response", watched.on_response)
    page.on("requestfailed", watched.on_failed_request)
    try:
        yield watched
        assert not watched.problems, "\n".join(dict.fromkeys(watched.problems))
    finally:
        context.close()


def file_name(text: str) -> str:
    """Return a text as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
