"""Every relative link in tracked Markdown leads to a file, and every anchor to a heading."""

import subprocess
from pathlib import Path

import pytest

from tests.support.markdown_links import anchors, broken_links, links, missing_files

ROOT = Path(__file__).resolve().parents[3]


def tracked(pattern: str) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listing.splitlines() if (ROOT / name).is_file()]


def test_every_link_resolves() -> None:
    files = tracked("*.md")
    assert sum(len(list(links(file.read_text()))) for file in files) > 50
    assert [problem for file in files for problem in broken_links(file, ROOT)] == []


def test_every_path_in_the_text_names_a_file() -> None:
    folders = {file.relative_to(ROOT).parts[0] for file in tracked("*/*")}
    assert [problem for file in tracked("*.md") for problem in missing_files(file, ROOT, folders)] == []


def test_path_that_names_no_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "door.py").write_text("")
    page = tmp_path / "page.md"
    page.write_text("See `shop/door.py`, `shop/door.py::open`, `build/new.json`\nand `shop/window.py`.\n")
    assert missing_files(page, tmp_path, {"shop"}) == ["page.md:2: shop/window.py: no such file"]


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("[door](door.md)", None),
        ("[door](door.md#open-the-door-1)", None),
        ("[here](#links)", None),
        ("[folder](sub)", None),
        ("[web](https://example.org/nowhere#at-all)", None),
        ("`[code](nowhere.md)`", None),
        ("[`window`](window.md)", "window.md: no such file"),
        ("![picture](door.svg)", "door.svg: no such file"),
        ("[outside](../outside.md)", "../outside.md: no such file"),
        ("[door](door.md#close)", "door.md#close: no such heading"),
        ("[door](door.md#not-a-heading)", "door.md#not-a-heading: no such heading"),
        ("[here](#nowhere)", "#nowhere: no such heading"),
    ],
)
def test_link_that_leads_nowhere_is_found(tmp_path: Path, link: str, problem: str | None) -> None:
    root = tmp_path / "repository"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "outside.md").write_text("# Outside\n")
    (root / "door.md").write_text("# Open the door\n\n## Open the door\n\n```\n# Not a heading\n```\n")
    page = root / "page.md"
    page.write_text(f"# Links\n\nSee {link}.\n")
    assert broken_links(page, root) == ([f"page.md:3: {problem}"] if problem else [])


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("How `make test` works", "how-make-test-works"),
        ("001: Processes, and wires", "001-processes-and-wires"),
        ("Checkpoints & adapters", "checkpoints--adapters"),
        ("The [chart](chart.md)'s values", "the-charts-values"),
    ],
)
def test_anchor_of_a_heading_is_that_of_github(heading: str, anchor: str) -> None:
    assert anchors(f"## {heading}\n") == {anchor}
