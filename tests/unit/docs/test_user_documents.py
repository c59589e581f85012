"""Documents of users: no S3 credentials, valid links, and a place in the index."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.source_tree import ROOT

DOCS = ROOT / "docs"
PLATFORM = {"docs/guides/operate.md", "docs/guides/rotate.md", "docs/release-notes.md"}
"""Documents of the platform team, which has the bucket's key; the chart and design records are its as well."""
VARIABLE = re.compile(r"\bAWS_[A-Z0-9_]+|AWS_\*")


def user_documents() -> list[Path]:
    """Return all pages that users are led to, and the help texts of commands, which the reference has."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *DOCS.rglob("*.json"), *(ROOT / "examples").rglob("*.md")]
    names = {str(page.relative_to(ROOT)): page for page in pages}
    return [page for name, page in sorted(names.items()) if name not in PLATFORM and "docs/design/" not in name]


def variables_of(text: str) -> list[str]:
    """Return the variables of AWS tools that a text names."""
    return VARIABLE.findall(text)


@pytest.mark.parametrize("page", user_documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_users_need_no_variable_of_aws_tools(page: Path) -> None:
    assert variables_of(page.read_text()) == []


@pytest.mark.parametrize("planted", ["export AWS_ACCESS_KEY_ID=x", "its `AWS_*` variables", "(AWS_ENDPOINT_URL_S3)"])
def test_a_planted_variable_is_found(planted: str) -> None:
    assert variables_of(planted)


def test_the_guides_are_among_the_documents_of_users() -> None:
    names = {page.name for page in user_documents()}
    assert {"README.md", "cli.md", "quickstart.md", "continue.md", "faq.md", "openapi.json"} <= names


def test_the_index_names_every_guide() -> None:
    index = (DOCS / "README.md").read_text()
    assert [page.name for page in (DOCS / "guides").glob("*.md") if f"guides/{page.name}" not in index] == []


def test_the_reasons_of_the_troubleshooting_page_exist() -> None:
    known = (DOCS / "reference" / "conditions.md").read_text()
    guide = (DOCS / "guides" / "troubleshooting.md").read_text()
    cells = [line.split("|")[1] for line in guide.splitlines() if line.startswith("|")]
    named = [reason for cell in cells for reason in re.findall(r"`([A-Z][A-Za-z0-9]+)`", cell)]
    assert len(named) > 20
    assert [reason for reason in named if f"| `{reason}` |" not in known] == []


def test_the_picture_is_wellformed_and_described() -> None:
    root = ElementTree.parse(DOCS / "images" / "system.svg").getroot()
    assert root.attrib["role"] == "img"
    assert [child.tag.rpartition("}")[2] for child in root][:2] == ["title", "desc"]
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
