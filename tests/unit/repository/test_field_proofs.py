"""No field of RLRun's spec without a test that fails when the field loses its effect."""

import ast
from pathlib import Path

import pytest

from tests.support.field_proofs import PAGE, ROOT, fields, page, proofs


def test_every_field_is_proved() -> None:
    assert sorted(fields().keys() - proofs().keys()) == []


def test_no_mark_names_a_field_that_does_not_exist() -> None:
    assert sorted(proofs().keys() - fields().keys()) == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.support.field_proofs`"


def test_marks_are_found_wherever_a_test_may_stand(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import pytest\n"
        '@pytest.mark.proves("a", "b.c")\ndef test_one(): ...\n'
        'class TestTwo:\n    @pytest.mark.slow\n    @pytest.mark.proves("a")\n    async def test_two(self): ...\n'
    )
    assert proofs(tmp_path / "tests") == {
        "a": ["tests/test_it.py::test_one", "tests/test_it.py::TestTwo::test_two"],
        "b.c": ["tests/test_it.py::test_one"],
    }


@pytest.mark.parametrize("path", ["maxSteps", "sampling.topP", "env.args", "eval.env.numExamples", "loss.ratioLow"])
def test_fields_are_values_and_not_sections(path: str) -> None:
    assert path in fields()
    assert "sampling" not in fields()


def test_every_citation_is_a_test_that_pytest_finds() -> None:
    # The tests of images and the cluster import what is not installed here. Their names must at least be in the file.
    for cited in {test for tests in proofs().values() for test in tests}:
        path, *names = cited.split("::")
        tree: ast.AST = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        for name in names:
            inner = [node for node in ast.iter_child_nodes(tree) if getattr(node, "name", None) == name]
            assert inner, cited
            tree = inner[0]


@pytest.mark.slow
def test_citations_of_this_level_can_be_run_as_they_stand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cited = sorted({test for tests in proofs().values() for test in tests if test.startswith("tests/unit/")})
    # In this process, which has imported most of their modules. Options of the outer pytest are not for the inner one.
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *cited])
    assert code == 0, "".join(capsys.readouterr())


def test_each_field_is_one_row_of_the_table() -> None:
    rows = (ROOT / "docs" / "fields.md").read_text().split("|---|---|---|\n")[1]
    assert [row for row in rows.splitlines() if not row.startswith("| `")] == []
