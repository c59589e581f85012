"""pydantic's verdict on the fixture specs; tests/apiserver/schema asks the API server about the same files."""

import pytest
from pydantic import ValidationError
from rlrun.api.base.field_errors import problems
from rlrun.api.base.kubernetes_types import KubernetesObject
from rlrun.api.base.rules import check_update
from rlrun.codegen.crd import KINDS

from tests.fixtures.specs import cases

MODELS = {kind.name: kind.model for kind in KINDS}


def _load(obj: cases.Object) -> KubernetesObject:
    return MODELS[obj["kind"]].from_object(obj)


@pytest.mark.parametrize("case", cases.valid(), ids=lambda c: c.name)
def test_valid_specs_are_accepted_and_survive_a_round_trip(case: cases.Case) -> None:
    loaded = _load(case.object)
    again = MODELS[case.object["kind"]].from_object(loaded.to_json_dict())
    assert again.spec == loaded.spec


@pytest.mark.parametrize("case", cases.invalid(), ids=lambda c: c.name)
def test_invalid_specs_are_refused_and_the_field_named(case: cases.Case) -> None:
    with pytest.raises(ValidationError) as caught:
        _load(case.object)
    found = problems(caught.value, MODELS[case.object["kind"]])
    assert any(cases.names_field(p.path, case.field) for p in found), found
    assert all(p.message for p in found)


@pytest.mark.parametrize("update", cases.updates("allowed"), ids=lambda u: u.name)
def test_allowed_updates(update: cases.Update) -> None:
    old, new = _load(update.object), _load(cases.merged(update.object, update.change))
    assert list(check_update(old.spec, new.spec)) == []


@pytest.mark.parametrize("update", cases.updates("refused"), ids=lambda u: u.name)
def test_refused_updates_name_the_field(update: cases.Update) -> None:
    old, new = _load(update.object), _load(cases.merged(update.object, update.change))
    assert [v.path for v in check_update(old.spec, new.spec)] == [update.field]


@pytest.mark.proves("driver")
def test_the_driver_cannot_change() -> None:
    specs = {case.name: _load(case.object).spec for case in cases.valid() if case.name in {"run-minimal", "run-client"}}
    found = [violation.path for violation in check_update(specs["run-minimal"], specs["run-client"])]
    assert "spec.driver" in found


def test_the_minimum_number_of_fixtures_exists() -> None:
    assert len(cases.valid()) >= 15
    assert len(cases.invalid()) >= 60


def test_every_file_of_the_fixtures_is_read() -> None:
    read = {"bases.yaml", "valid.yaml", "invalid.yaml", "updates.yaml"}
    assert {path.name for path in cases.FOLDER.rglob("*.yaml")} == read
