"""Pictures of the page, from real runs: `make screenshots SERVER=URL TOKEN=... RUN=team/name OTHER=team/name`.

The token is read from RLRUN_TOKEN, so that it is in no list of processes. Pictures replace docs/images/page-*.png.
"""

import argparse
import os
import sys
from pathlib import Path

from playwright.sync_api import Browser

from tests.support.browser import chromium, watched_page
from tests.support.source_tree import ROOT

IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1280, 800
SETTLE_MS = 1500
"""Time for charts to be drawn."""


def views(run: str, other: str | None) -> dict[str, str]:
    """Return the view of each picture."""
    found = {
        "runs": "/runs",
        "run": f"/runs/{run}",
        "samples": f"/runs/{run}/samples",
        "artifacts": f"/runs/{run}/artifacts",
    }
    return found | ({"compare": f"/compare?run={run}&run={other}"} if other else {})


def take(browser: Browser, server: str, token: str, wanted: dict[str, str], folder: Path) -> list[Path]:
    """Write a picture of each view, in light and dark, and return their paths. Raises AssertionError for errors."""
    made = []
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        options = {"color_scheme": scheme, "viewport": {"width": WIDTH, "height": HEIGHT}, "device_scale_factor": 2}
        with watched_page(browser, server, ignore_https_errors=True, **options) as watched:
            watched.log_in(token)
            for name, view in wanted.items():
                watched.open(view)
                # A run that goes on keeps a stream open: the network is never idle.
                watched.page.locator("main h1").first.wait_for()
                watched.page.wait_for_timeout(SETTLE_MS)
                path = folder / f"page-{name}{'' if scheme == 'light' else '-dark'}.png"
                watched.page.screenshot(path=str(path))
                made.append(path)
    return made


def main(arguments: list[str]) -> None:
    """Take all pictures and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="URL of rlrun-server")
    parser.add_argument("--run", required=True, help="run to show, as namespace/name")
    parser.add_argument("--other", help="run to compare it with")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    given = parser.parse_args(arguments)
    token = os.environ.get("RLRUN_TOKEN", "")
    if not given.server or not token or given.run.count("/") != 1:
        parser.error("SERVER, TOKEN and RUN=namespace/name are needed")
    with chromium() as browser:
        for path in take(browser, given.server.rstrip("/"), token, views(given.run, given.other), given.folder):
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
