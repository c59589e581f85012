"""Examples of the hosted service, of its clients and of self-managed trainers: accepted as they are, or refused with a
reason that the documentation gives.

tests/fixtures/hosted has one TOML file per example, and verdicts.yaml with what is expected of each. Examples of a part
of a file are completed with a model and an environment.
"""

import re
from typing import Any

import pytest
import yaml
from rlrun.api.base.names import snake_words
from rlrun.api.toml.loader import RunToml, TomlError, loads

from tests.support.source_tree import ROOT

EXAMPLES = ROOT / "tests" / "fixtures" / "hosted"
VERDICTS: dict[str, dict[str, Any]] = yaml.safe_load((EXAMPLES / "verdicts.yaml").read_text())
ACCEPTED = [name for name, verdict in VERDICTS.items() if "refused" not in verdict]
REFUSED = [name for name, verdict in VERDICTS.items() if "refused" in verdict]
LIMITS = {
    "must be greater than 0": "> 0",
    "must be a valid integer": "integer",
    "has the wrong format": "`^",
    "is required": "required",
}
"""What the table of keys says about messages that have no text of their own there."""


def read(name: str) -> RunToml:
    """Return the run of an example. Raises TomlError."""
    text = (EXAMPLES / f"{name}.toml").read_text()
    if "model = " not in text.partition("[")[0]:
        text = f'model = "org/model"\n{text}'
    if "[[env]]" not in text and not re.search(r"^env = ", text, re.MULTILINE):
        text += '\n[[env]]\nid = "owner/name"\n'
    return loads(text, "team")


def value_at(run: RunToml, path: str) -> Any:
    """Return the value of the spec at a path such as `env.0.id`, or the files with variables."""
    found: Any = {"env_files": run.env_files, **run.spec.model_dump(mode="json")}
    for part in path.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]
    return found


def test_every_example_has_a_verdict() -> None:
    assert set(VERDICTS) == {path.relative_to(EXAMPLES).with_suffix("").as_posix() for path in EXAMPLES.rglob("*.toml")}


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_example_is_accepted(name: str) -> None:
    run = read(name)
    assert {path: value_at(run, path) for path in VERDICTS[name]} == VERDICTS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_an_example_is_refused_with_a_documented_reason(name: str) -> None:
    with pytest.raises(TomlError) as caught:
        read(name)
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert found == VERDICTS[name]["refused"]
    for path, message in found.items():
        assert is_documented(path, message), f"no page says why {path} is refused: {message}"


def is_documented(path: str, message: str) -> bool:
    """Return whether a page of the reference gives the reason, or the limit of the key that is violated."""
    limit = next((shown for start, shown in LIMITS.items() if start in message), None)
    pages = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    for general in ("unknown field", "has the same meaning as"):
        message = general if message.startswith(general) else message
    if limit is None:
        return any(message in " ".join(text.split()) for page in pages for text in (page, snake_words(page)))
    keys = (ROOT / "docs" / "reference" / "toml.md").read_text().splitlines()
    key = path.replace("[0]", "[]")
    return any(line.startswith(f"| `{key}` |") and limit in line for line in keys)


def test_a_reason_that_no_page_gives_is_found() -> None:
    assert not is_documented("max_steps", "is too long for a Tuesday")
    assert not is_documented("max_steps", "is required")
