"""Tests that are not marked slow start no processes."""

import marshal
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-c", ""]


def test_a_fast_test_that_starts_a_process_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="mark it slow"):
        subprocess.run(COMMAND, check=True)


@pytest.mark.slow
def test_a_slow_test_may_start_one() -> None:
    subprocess.run(COMMAND, check=True)


def test_a_fast_test_may_do_all_else_that_python_audits() -> None:
    assert marshal.loads(marshal.dumps({})) == {}
