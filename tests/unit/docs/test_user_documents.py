"""Documents of users: no S3 credentials, valid links, and a place in the index."""

import re
from pathlib import Path

import pytest

from tests.support.markdown_links import broken_links
from tests.support.source_tree import ROOT

DOCS = ROOT / "docs"
PLATFORM = {"docs/guides/operate.md", "docs/release-notes.md"}
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


@pytest.mark.parametrize("page", sorted(DOCS.glob("**/*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_index_names_every_guide() -> None:
    index = (DOCS / "README.md").read_text()
    assert [page.name for page in (DOCS / "guides").glob("*.md") if f"guides/{page.name}" not in index] == []
