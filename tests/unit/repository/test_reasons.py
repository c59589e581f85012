"""Every reason is declared once, set by some code, and explained to people."""

import re

from rlrun.api.adapter import DeploymentState
from rlrun.api.base.phases import Phase
from rlrun.codegen.reason_catalog import CONDITIONS, SECTIONS, ReasonSection
from rlrun.constants import ConditionType, Hint, Reason, TrainingIssue

from tests.unit.repository.reasons_in_code import condition_literals, literals, texts, used

OPEN_FAMILIES = frozenset({"HTTP{}"})
"""Reasons that name the status of a server which is not part of this project."""
STATES = frozenset([*(phase.value for phase in Phase), *(state.value for state in DeploymentState)])
"""An Event's reason may be the state that an object has reached."""
OF_KUBERNETES = frozenset({"CreateContainerConfigError", "AlreadyExists", "Forbidden"})
"""Reasons of the kubelet and of the API server, compared as strings."""
LITERALS_LEFT: frozenset[str] = frozenset()
"""Reasons that are still written as strings."""
CONDITION_LITERALS_LEFT: frozenset[str] = frozenset()
"""Condition types that are still written as strings."""
MERGED: frozenset[str] = frozenset()
"""Become InvalidConfiguration together with the strings."""


def pattern(template: str) -> re.Pattern[str]:
    """What an f-string may become; `{}` stands for one or more words."""
    return re.compile("[A-Z][A-Za-z0-9]*".join(map(re.escape, template.split("{}"))))


def test_every_reason_that_code_names_is_declared() -> None:
    unknown = {
        f"{found.text} ({found.place})"
        for found in literals()
        if found.text not in OPEN_FAMILIES | MERGED | OF_KUBERNETES
        and not any(pattern(found.text).fullmatch(r) for r in Reason)
    }
    assert not unknown, "declare them in constants.Reason and explain them in the catalogue"


def test_every_declared_reason_is_set_by_code() -> None:
    members = {name.upper() for kind in ("Trouble", TrainingIssue.__name__, Hint.__name__) for name in used(kind)}
    members |= set(used(Reason.__name__))
    written = texts() if LITERALS_LEFT else frozenset()
    composed = [pattern(found.text) for found in literals() if "{}" in found.text and found.text not in OPEN_FAMILIES]
    unused = {
        reason.value
        for reason in Reason
        if reason.name not in members
        and reason.value not in written | STATES
        and not any(p.fullmatch(reason) for p in composed)
    }
    assert not unused, "nothing sets these: remove them from constants.Reason and from the catalogue"


def test_no_reason_is_written_as_a_string() -> None:
    written = [found for found in literals() if "{}" not in found.text]
    left = {f"{found.text} ({found.place})" for found in written if found.text not in LITERALS_LEFT | OF_KUBERNETES}
    assert not left, "use constants.Reason"


def test_no_condition_type_is_written_as_a_string() -> None:
    left = {f"{f.text} ({f.place})" for f in condition_literals() if f.text not in CONDITION_LITERALS_LEFT}
    assert not left, "use constants.ConditionType"


def test_every_condition_type_is_set_by_code() -> None:
    written, members = texts(), used(ConditionType.__name__)
    assert {t.value for t in ConditionType if t.name not in members and t.value not in written} == set()


def test_every_reason_is_explained_once() -> None:
    explained = [entry.reason for section in SECTIONS for entry in section.entries]
    assert sorted(explained) == sorted(Reason)


def test_explanations_are_sentences() -> None:
    texts = [text for section in SECTIONS for entry in section.entries for text in (entry.meaning, entry.action)]
    assert [text for text in texts if not text.endswith(".") or text != text.strip()] == []


def test_every_condition_type_is_described_once() -> None:
    assert [condition.type for condition in CONDITIONS] == list(ConditionType)


def test_every_section_that_a_condition_refers_to_is_in_the_page() -> None:
    named = {one.title for c in CONDITIONS for one in (*c.when_true, *c.when_false) if isinstance(one, ReasonSection)}
    assert named <= {section.title for section in SECTIONS}
