"""The tables of other trainers' keys are true: equivalents exist and are accepted, all others are refused."""

import re
from dataclasses import replace
from typing import Any

import pytest
from rlrun.api.base.field_errors import fields_at
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.dialect_key import DialectKey
from rlrun.api.toml.dialect_keys import FOR_EVALUATION, HOSTED, SELF_MANAGED, refusal
from rlrun.api.toml.dialects import translate
from rlrun.api.toml.loader import ENV_FILE_KEYS, TomlError, loads
from rlrun.api.toml.prime_rl_keys import DEFAULTS, PRIME_RL
from rlrun.api.toml.writer import write_toml

KEYS = (*SELF_MANAGED, *HOSTED)
TRANSLATED = [row for row in (*KEYS, *PRIME_RL) if row.equivalent and row.equivalent != row.key]
REFUSED = [row for row in KEYS if not row.equivalent]
LISTS = re.compile(r"^((eval\.)?env|orchestrator\.((train|eval)\.(source|env)|env)|pre_batch_filters)(?=\.|$)")
"""Beginning of the path of a key in a list of tables."""


def is_known(path: str) -> bool:
    *section, name = path.replace("[]", "").split(".")
    if "harness" in section:
        return True
    return name in (*fields_at(RLRunSpec, section, by_name=True), *(() if section else ENV_FILE_KEYS))


def example(row: DialectKey, value: Any) -> dict[str, Any]:
    """Return a file that has the key with a value, without a run's other keys."""
    path = row.key.replace("*", "any")
    table: dict[str, Any] = {}
    if LISTS.fullmatch(path) and not row.equivalent:
        return {path: value}
    here: Any = table
    rest = path
    if found := LISTS.match(path):
        *above, name = found[0].split(".")
        for part in above:
            here = here.setdefault(part, {})
        here[name] = [{}]
        here, rest = here[name][0], path[found.end() + 1 :]
    *sections, name = rest.split(".") if rest else [""]
    for part in sections:
        here = here.setdefault(part, {})
    if name:
        here[name] = value
    if row in PRIME_RL:
        table.setdefault("orchestrator", {}).setdefault("train", {})
        table["ckpt"] = table.get("ckpt", {})
        if isinstance(evaluation := table["orchestrator"].get("eval"), dict):
            evaluation.setdefault("source", [{}])
    return table


@pytest.mark.parametrize("row", [row for row in (*KEYS, *PRIME_RL) if row.equivalent], ids=lambda row: row.key)
def test_an_equivalent_exists(row: DialectKey) -> None:
    assert row.equivalent is not None
    assert is_known(row.equivalent)


@pytest.mark.parametrize("row", TRANSLATED, ids=lambda row: row.key)
def test_an_equivalent_key_is_accepted_under_the_other_name(row: DialectKey) -> None:
    if row.key == "env_files":
        return
    given: Any
    wanted: Any
    given, wanted = (True, False) if row.is_inverted else (256, 2.0) if row.divisor else ("text", "text")
    if row.values:
        given, wanted = next(iter(row.values.items()))
    if LISTS.fullmatch(row.key):
        wanted = None
    result = translate(example(row, given))
    assert not result.problems
    found: Any = result.table
    for part in (row.equivalent or "").replace("[]", ".0").split("."):
        found = found[int(part)] if part.isdecimal() else found[part]
    assert wanted is None or found == wanted


@pytest.mark.parametrize("row", [row for row in PRIME_RL if row.is_ignored], ids=lambda row: row.key)
def test_a_key_without_an_effect_is_noted(row: DialectKey) -> None:
    result = translate(example(row, "text"))
    path = LISTS.sub(lambda found: f"{found[0]}[0]", row.key.replace("*", "any"))
    assert {note.path: note.message for note in result.notes}[path] == f"ignored: {row.remark}"
    assert not result.problems


@pytest.mark.parametrize(
    "row", [row for row in PRIME_RL if not row.is_ignored and not row.equivalent], ids=lambda row: row.key
)
def test_a_key_of_prime_rl_without_an_equivalent_is_refused_with_its_reason(row: DialectKey) -> None:
    result = translate(example(row, "text"))
    path = LISTS.sub(lambda found: f"{found[0]}[0]", row.key.replace("*", "any"))
    assert {problem.path: problem.message for problem in result.problems} == {path: row.remark}


@pytest.mark.parametrize("row", [row for row in (*KEYS, *PRIME_RL) if row.accepted], ids=lambda row: row.key)
def test_values_that_a_run_has_anyway_are_left_out(row: DialectKey) -> None:
    for value in row.accepted:
        result = translate(example(row, value))
        assert not result.problems
        assert LISTS.sub(lambda found: f"{found[0]}[0]", row.key) not in {note.path for note in result.notes}


def test_each_key_has_a_reason_and_one_row() -> None:
    for rows in (KEYS, PRIME_RL):
        assert len({row.key for row in rows}) == len(rows)
    assert not [row.key for row in (*KEYS, *PRIME_RL) if not row.equivalent and not row.remark]
    assert all(is_known(default.key) for default in DEFAULTS)


def test_a_row_whose_equivalent_does_not_exist_is_found() -> None:
    assert not is_known("sampling.maximum")
    row = next(row for row in PRIME_RL if row.key == "trainer.optim.lr")
    assert "learning_rate" in translate(example(replace(row), 1e-5)).table


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.key)
def test_a_key_without_an_equivalent_is_refused_with_its_reason(key: DialectKey) -> None:
    table = {"model": "a/b", "env": [{"id": "a/b"}]} | example(key, "text")
    with pytest.raises(TomlError) as caught:
        loads(write_toml(table))
    found = {problem.path.replace("[0]", ""): problem.message for problem in caught.value.problems}
    assert found[key.key] == key.remark


def test_environments_for_evaluation_have_the_same_reasons() -> None:
    assert refusal("eval.env[3].pool") == refusal("env[0].pool") is not None
    assert refusal("eval.pool") is None
    assert "eval.env.pool" in {row.key for row in FOR_EVALUATION}


def test_bounds_that_are_distances_from_one_become_ratios_and_are_said() -> None:
    loss = 'ratio_limit = "ppo"\nclip_ratio_low = 0.2\nclip_ratio_high = 0.28'
    run = loads(f'model = "a/b"\n[loss]\n{loss}\n[[env]]\nid = "a/b"')
    assert (run.spec.loss.ratio_low, run.spec.loss.ratio_high) == (0.8, 1.28)
    assert [note.message for note in run.notes] == [
        "0.2 becomes loss.ratio_low 0.8 in rlrun",
        "0.28 becomes loss.ratio_high 1.28 in rlrun",
    ]
    with pytest.raises(TomlError, match="clip_ratio_low") as caught:
        loads(f'model = "a/b"\n[loss]\n{loss.replace("0.2", "1.2", 1)}\n[[env]]\nid = "a/b"')
    assert "greater than or equal" in str(caught.value) or "at least 0" in str(caught.value)


def test_the_loss_may_be_named() -> None:
    dppo = loads('model = "a/b"\nloss = "dppo"\n[[env]]\nid = "a/b"').spec.loss.dppo
    assert dppo is not None
    assert dppo.kl_tau == 0.001


def test_a_table_for_the_loss_keeps_its_own_problems() -> None:
    with pytest.raises(TomlError, match="ratio_low"):
        loads('model = "a/b"\n[loss]\nratio_low = 2\n[[env]]\nid = "a/b"')


def test_empty_lists_of_filters_are_left_out() -> None:
    table = {"pre_batch_filters": [], "post_batch_filters": []}
    assert translate(table).table == {}
    assert not translate(table).problems
