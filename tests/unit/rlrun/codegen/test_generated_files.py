"""What is generated and committed is what the schema says now, and it says something about every field."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from rlrun.api.base.names import snake
from rlrun.api.base.rules import Spec
from rlrun.codegen import crd, reference_pages
from rlrun.codegen.generated_files import update
from rlrun.codegen.openapi import PRESERVE, VALIDATIONS, Json, structural

ROOT = Path(__file__).parents[4]
IDS = [kind.name for kind in crd.KINDS]


def _schema(kind: crd.CrdKind) -> Json:
    return crd.complete_schema(kind)


def _properties(schema: Json, path: str) -> Iterator[tuple[str, Json]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from _properties(field, f"{path}.{name}")
        yield from _properties(field.get("items", {}), f"{path}.{name}[]")


def test_crds_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert update(ROOT / crd.FOLDER, crd.render(), check=True, command="python -m rlrun.codegen.crd") == 0, (
        capsys.readouterr()
    )


def test_reference_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "docs" / "reference"
    others = reference_pages.OTHERS
    assert update(folder, reference_pages.render(), check=True, command="make generate", others=others) == 0, (
        capsys.readouterr()
    )


def test_each_row_of_the_reference_is_one_line() -> None:
    rows = [pair for page in reference_pages.render().values() for pair in pairwise(page.splitlines())]
    broken = [below for row, below in rows if row[:1] == "|" and below[:1] not in ("|", "")]
    assert broken == []


def test_check_finds_a_changed_a_missing_and_a_stale_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"a.yaml": "one\n", "b.yaml": "two\n"}
    assert update(tmp_path, files, check=False, command="make it") == 0
    assert update(tmp_path, files, check=True, command="make it") == 0
    (tmp_path / "a.yaml").write_text("other\n")
    (tmp_path / "b.yaml").unlink()
    (tmp_path / "c.yaml").write_text("old\n")
    assert update(tmp_path, files, check=True, command="make it") == 1
    said = capsys.readouterr().err
    assert all(word in said for word in ("-other", "+one", "+two", "c.yaml", "make it"))
    assert update(tmp_path, files, check=False, command="make it", others=frozenset({"c.yaml"})) == 0
    assert (tmp_path / "c.yaml").is_file(), "another command generates it"
    assert update(tmp_path, files, check=False, command="make it") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.yaml", "b.yaml"]


@pytest.mark.parametrize("kind", crd.KINDS, ids=IDS)
def test_every_field_is_described(kind: crd.CrdKind) -> None:
    bare = [
        path for path, field in _properties(_schema(kind), kind.name) if not field.get("description", "").endswith(".")
    ]
    # The API server wants no description of metadata, and fills in its own.
    assert [path for path in bare if not path.startswith(f"{kind.name}.metadata")] == []


@pytest.mark.parametrize("kind", crd.KINDS, ids=IDS)
def test_everything_in_a_spec_is_bounded(kind: crd.CrdKind) -> None:
    """Without bounds the API server cannot know what a rule costs, and one object can fill etcd."""
    unbounded = []
    for path, field in _properties(_schema(kind)["properties"]["spec"], "spec"):
        limit = {"array": "maxItems", "integer": "maximum", "number": "maximum"}.get(field.get("type", ""))
        if field.get("type") == "string" and "enum" not in field:
            limit = "maxLength"
        if "additionalProperties" in field or field.get(PRESERVE):
            limit = "maxProperties"
        if limit and limit not in field:
            unbounded.append(path)
    assert unbounded == []


def _defaults_in_lists(schema: Json, path: str, *, in_list: bool = False) -> Iterator[str]:
    if in_list and "default" in schema:
        yield path
    for name, field in schema.get("properties", {}).items():
        yield from _defaults_in_lists(field, f"{path}.{name}", in_list=in_list)
    for key in ("items", "additionalProperties"):
        if isinstance(below := schema.get(key), dict):
            yield from _defaults_in_lists(below, f"{path}[]", in_list=in_list or key == "items")


@pytest.mark.parametrize("kind", crd.KINDS, ids=IDS)
def test_the_api_server_adds_no_defaults_inside_lists(kind: crd.CrdKind) -> None:
    """A tool that compares an object with its file replaces lists as a whole, and would always show a difference."""
    assert list(_defaults_in_lists(crd.stored_schema(kind), kind.name)) == []


def test_a_status_that_is_written_often_has_no_schema_but_names_its_fields() -> None:
    run = next(kind for kind in crd.KINDS if kind.is_written_often)
    status = crd.stored_schema(run)["properties"]["status"]
    assert status[PRESERVE] is True
    assert set(status["properties"]) == {"phase"}, "what the API server selects by needs a type"
    for name in _schema(run)["properties"]["status"]["properties"]:
        assert name in status["description"]


def test_no_rule_of_a_kind_that_is_written_often_is_in_its_schema() -> None:
    run = next(kind for kind in crd.KINDS if kind.is_written_often)
    assert VALIDATIONS not in str(crd.stored_schema(run))


def test_a_union_is_refused_rather_than_guessed() -> None:
    class Broken(Spec):
        field: int | str = 1
        """Either."""

    with pytest.raises(TypeError, match="does not support unions"):
        structural(Broken)


def test_every_run_field_is_in_the_reference() -> None:
    spec = _schema(crd.KINDS[0])["properties"]["spec"]
    page = reference_pages.render()["toml.md"]
    for row in reference_pages.rows(spec):
        assert f"| `{snake(row.path)}` |" in page
