"""Every module in the table exists and has tests, and so have the files named beside it."""

import pytest

from tests.mutants.modules import IMAGE, UNIT, suite_of
from tests.support.source_tree import ROOT


@pytest.mark.parametrize("module", [*UNIT, *IMAGE])
def test_modules_have_tests(module: str) -> None:
    assert (ROOT / module).is_file()
    assert suite_of(module)
    further = UNIT.get(module, IMAGE.get(module, []))
    assert set(further) <= set(suite_of(module))
