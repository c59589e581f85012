"""Rollouts of a step: siblings side by side, differences, filters, one example through the steps."""

import re

from playwright.sync_api import expect

from tests.browser.conftest import AGENTS, LEARNING, OTHER, STORED, Server
from tests.support.browser import WatchedPage

ROLLOUTS = 4
"""Rollouts of a group."""


def show(watched: WatchedPage, server: Server, query: str = "", run: str = LEARNING) -> None:
    """Show the rollouts of step 40."""
    watched.open(server.view(run, f"samples?step=40{query}"))
    expect(watched.page.get_by_text("Reverse:").first).to_be_visible()


def test_siblings_and_their_differences(editor: WatchedPage, server: Server) -> None:
    page = editor.page
    show(editor, server)
    expect(page.get_by_role("article")).to_have_count(1)
    expect(page.get_by_role("article")).to_contain_text("overlap")
    page.keyboard.press("s")
    expect(page.get_by_role("region", name="Rollouts side by side").get_by_role("article")).to_have_count(ROLLOUTS)
    editor.check_accessibility()
    page.keyboard.press("d")
    expect(page.locator("pre.diff ins, pre.diff del").first).to_be_visible()
    editor.check_accessibility()
    page.keyboard.press("d")
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile(r"rollout=g40-0-r1"))
    expect(page.get_by_role("article", name="Rollout b")).to_be_visible()


def test_rollouts_of_agents_name_them(editor: WatchedPage, server: Server) -> None:
    page = editor.page
    show(editor, server)
    expect(page.get_by_role("article")).not_to_contain_text("agent")
    show(editor, server, run=OTHER)
    expect(page.get_by_role("article")).to_contain_text(f"agent {AGENTS[0]}")
    expect(page.get_by_role("button", name=re.compile(AGENTS[1])).first).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_role("article")).to_contain_text(f"agent {AGENTS[1]}")
    editor.check_accessibility()


def test_filters_are_in_the_address(editor: WatchedPage, server: Server) -> None:
    page = editor.page
    show(editor, server)
    page.get_by_label("Least reward").fill("5")
    expect(page.get_by_text("No rollout matches")).to_be_visible()
    expect(page).to_have_url(re.compile("min=5"))
    page.get_by_role("button", name="Remove the filters").click()
    expect(page.get_by_text("Reverse:").first).to_be_visible()
    page.get_by_label("Order").select_option("reward-desc")
    expect(page).to_have_url(re.compile("sort=reward-desc"))


def test_one_example_through_the_steps(editor: WatchedPage, server: Server) -> None:
    page = editor.page
    show(editor, server)
    expect(page.get_by_text("This example through the steps")).to_be_visible()
    page.get_by_role("button", name=f"step {STORED[0]} ").click()
    expect(page).to_have_url(re.compile(rf"step={STORED[0]}&.*example=0|example=0.*step={STORED[0]}"))
    expect(page.get_by_text("1 group, 4 rollouts")).to_be_visible()
    page.get_by_role("button", name=re.compile("Example 0")).click()
    expect(page.get_by_text("4 groups, 16 rollouts")).to_be_visible()
