"""The tables of other trainers' keys are true: equivalents exist and are accepted, all others are refused."""

import pytest
from rlrun.api.base.field_errors import fields_at
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.dialects import SYNONYMS
from rlrun.api.toml.foreign_keys import HOSTED, SELF_MANAGED, ForeignKey, refusal
from rlrun.api.toml.loader import ENV_FILE_KEYS, TomlError, loads
from rlrun.api.toml.writer import write_toml

KEYS = (*SELF_MANAGED, *HOSTED)
ACCEPTED = [key for key in KEYS if key.equivalent]
REFUSED = [key for key in KEYS if not key.equivalent]


def is_known(path: str) -> bool:
    *section, name = path.split(".")
    return name in (*fields_at(RLRunSpec, section, by_name=True), *(() if section else ENV_FILE_KEYS))


@pytest.mark.parametrize("key", ACCEPTED, ids=lambda key: key.key)
def test_an_equivalent_key_is_accepted_under_the_other_name(key: ForeignKey) -> None:
    assert key.equivalent is not None
    assert is_known(key.equivalent)
    translated = {synonym.path: synonym.target for synonym in SYNONYMS}
    assert is_known(key.key) or translated[key.key] == key.equivalent


def test_every_translated_key_is_in_a_table() -> None:
    assert {s.path: s.target for s in SYNONYMS}.items() <= {k.key: k.equivalent for k in KEYS}.items()


def test_no_key_is_in_the_tables_twice() -> None:
    assert len({key.key for key in KEYS}) == len(KEYS)


def example(key: str) -> str:
    """Return a file that has the key: a text, which is the wrong type for all of these keys."""
    table: dict[str, object] = {"model": "a/b", "env": [{"id": "a/b"}]}
    section, _, name = key.rpartition(".")
    entry = table["env"][0] if section == "env" else table.setdefault(section, {}) if section else table  # type: ignore[index]
    entry[name] = "text"  # type: ignore[index]
    return write_toml(table)


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.key)
def test_a_key_without_an_equivalent_is_refused_with_its_reason(key: ForeignKey) -> None:
    with pytest.raises(TomlError) as caught:
        loads(example(key.key))
    found = {problem.path.replace("[0]", ""): problem.message for problem in caught.value.problems}
    assert found[key.key] == key.remark


def test_environments_for_evaluation_have_the_same_reasons() -> None:
    assert refusal("eval.env[3].pool") == refusal("env[0].pool") is not None
    assert refusal("eval.pool") is None


def test_a_table_for_the_loss_keeps_its_own_problems() -> None:
    with pytest.raises(TomlError, match="ratio_low"):
        loads('model = "a/b"\n[loss]\nratio_low = 2\n[[env]]\nid = "a/b"')
