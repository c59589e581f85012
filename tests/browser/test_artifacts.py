"""What users do with checkpoints and adapters: continue, deploy, delete."""

import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import LEARNING, Server
from tests.support.browser import WatchedPage

CHECKPOINT, ADAPTER = f"{LEARNING}-40", f"{LEARNING}-a40"


def read(server: Server, path: str) -> Any:
    """Return an object of the API, as the editor sees it."""
    headers = {"Authorization": f"Bearer {server.tokens['editor']}"}
    answer = httpx.get(f"{server.url}/rlrun/v1/namespaces/{server.namespace}/{path}", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def row(watched: WatchedPage, server: Server, name: str) -> Locator:
    """Show the artifacts of the run, and return the row of one."""
    watched.open(server.view(LEARNING, "artifacts"))
    found = watched.page.get_by_role("row").filter(has=watched.page.get_by_role("rowheader", name=name, exact=True))
    expect(found).to_be_visible()
    return found


def test_an_adapter_is_deployed_and_undeployed(editor: WatchedPage, server: Server) -> None:
    page, found = editor.page, row(editor, server, ADAPTER)
    found.get_by_role("button", name="Deploy", exact=True).click()
    editor.check_accessibility()
    page.get_by_role("dialog").get_by_role("button", name="Deploy", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(found.get_by_role("button", name="Undeploy")).to_be_visible()
    expect(found.get_by_role("button", name="Delete")).to_be_disabled()
    assert read(server, f"adapters/{ADAPTER}")["spec"]["deployed"] is True
    found.get_by_role("button", name="Undeploy").click()
    page.get_by_role("dialog").get_by_role("button", name="Undeploy").click()
    expect(found.get_by_role("button", name="Deploy", exact=True)).to_be_visible()
    assert not read(server, f"adapters/{ADAPTER}")["spec"].get("deployed")


def test_who_may_not_deploy_is_told(watched: WatchedPage, server: Server) -> None:
    watched.log_in(server.tokens["viewer"])
    watched.expect(403, ":deploy")
    row(watched, server, ADAPTER).get_by_role("button", name="Deploy", exact=True).click()
    dialog = watched.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Deploy", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("may not patch rladapters")
    assert not read(server, f"adapters/{ADAPTER}")["spec"].get("deployed")


@pytest.mark.parametrize("is_name_typed", [True, False], ids=["kept files", "deleted files"])
def test_a_run_continues_from_a_checkpoint_and_is_deleted(
    editor: WatchedPage, server: Server, is_name_typed: bool
) -> None:
    page = editor.page
    row(editor, server, CHECKPOINT).get_by_role("button", name="Continue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("Goes on")
    dialog.get_by_label("Steps").fill("7")
    editor.check_accessibility()
    dialog.get_by_role("button", name="Start the run").click()
    expect(page).to_have_url(re.compile(r"/runs/[^/]+/goes-on-"))
    expect(page.get_by_role("heading", name="Goes on")).to_be_visible()
    name = page.url.rpartition("/")[2]
    spec = read(server, f"runs/{name}")["spec"]
    assert (spec["checkpointId"], spec["maxSteps"], spec["model"]) == (
        CHECKPOINT,
        7,
        read(server, f"runs/{LEARNING}")["spec"]["model"],
    )
    # A poll of the run may be under way when it is deleted.
    editor.expect(404, f"/runs/{name}")
    page.get_by_role("button", name="Delete").first.click()
    if not is_name_typed:
        dialog.get_by_label("Checkpoints, adapters and rollouts").select_option("delete")
        expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
        dialog.get_by_label("Type the name").fill(name)
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Goes on")).to_have_count(0)
