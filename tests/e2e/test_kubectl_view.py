"""What people see with plain kubectl."""

from collections.abc import Callable

import pytest

from demo.watch import follow
from tests.e2e.conftest import Platform

COLUMNS = {
    "rlruns": ["NAME", "PHASE", "STEP", "REWARD", "MODEL", "AGE"],
    "rlcheckpoints": ["NAME", "RUN", "STEP", "PHASE", "SIZE"],
    "rladapters": ["NAME", "RUN", "STEP", "PHASE", "DEPLOYED"],
}


def test_columns_tell_how_it_went(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    namespace = fresh_namespace("view")
    platform.kubectl.apply(platform.run_object("seen", namespace, maxSteps=1))
    follow(platform.kubectl, "seen", namespace, seconds=400)
    for kind, columns in COLUMNS.items():
        header, *rows = platform.kubectl("get", kind, "-n", namespace).splitlines()
        assert [c for c in columns if c not in header.split()] == []
        assert rows
        assert all("<none>" not in row for row in rows), rows
    assert "Completed" in platform.kubectl("get", "rlr", "seen", "-n", namespace)
    assert "reverse-text-tiny" in platform.kubectl("get", "rlmodels")


@pytest.mark.parametrize("kind", ["rlrun", "rlmodel", "rlcheckpoint", "rladapter"])
def test_explain_describes_every_field(platform: Platform, kind: str) -> None:
    text = platform.kubectl("explain", f"{kind}.spec")
    assert "<no description>" not in text
    assert "FIELDS:" in text
