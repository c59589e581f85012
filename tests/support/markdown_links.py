"""Links and headings of Markdown files."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import unquote

FENCE = re.compile(r"^\s*(?P<fence>```+|~~~+)")
HEADING = re.compile(r"#{1,6}\s+(?P<text>.+?)\s*#*\s*")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\((?P<target>[^()\s]+)(?:\s+\"[^\"]*\")?\)")
CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")
PATH_SPAN = re.compile(r"`(?P<path>[\w.-]+(?:/[\w.-]+)+\.(?:py|md|yaml|toml|json|sh))(?:::[\w.:]+)?`")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines outside of fenced blocks."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        marker = FENCE.match(line)
        if fence is None and marker:
            fence = marker["fence"]
        elif fence is not None:
            if line.strip() == fence:
                fence = None
        else:
            yield number, line


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings."""
    counts: Counter[str] = Counter()
    found = set()
    for _, line in prose_lines(text):
        heading = HEADING.fullmatch(line)
        if heading is None:
            continue
        name = LINK_TEXT.sub(r"\1", heading["text"]).lower()
        slug = re.sub(r"[^\w\- ]", "", name).replace(" ", "-")
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return found


def links(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and target of every link to a place in the repository."""
    for number, line in prose_lines(text):
        for match in LINK.finditer(CODE_SPAN.sub("`code`", line)):
            if not ELSEWHERE.match(match["target"]):
                yield number, match["target"]


def broken_links(path: Path, root: Path) -> list[str]:
    """Return a sentence for every link of a file that leads nowhere."""
    found = []
    for number, target in links(path.read_text()):
        file, _, anchor = target.partition("#")
        place = (path.parent / unquote(file)).resolve() if file else path
        name = f"{path.relative_to(root)}:{number}: {target}"
        if not place.is_relative_to(root) or not place.exists():
            found.append(f"{name}: no such file")
        elif anchor and anchor not in anchors(place.read_text()):
            found.append(f"{name}: no such heading")
    return found


def missing_files(path: Path, root: Path, folders: Collection[str]) -> list[str]:
    """Return a sentence for every `path` below one of the top-level folders that names no file."""
    found = []
    for number, line in prose_lines(path.read_text()):
        for match in PATH_SPAN.finditer(line):
            name = match["path"]
            if name.split("/")[0] in folders and not (root / name).exists():
                found.append(f"{path.relative_to(root)}:{number}: {name}: no such file")
    return found
