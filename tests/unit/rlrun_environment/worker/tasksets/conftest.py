"""Environments of verifiers.v1 written by tests. Their programs run with the tests' interpreter, without a network."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from rlrun.protocol.environment import EnvironmentConfig, GroupRequest

from tests.support.environments import make_group, make_runner, upstream, write_environment

__all__ = ["make_group", "make_runner", "upstream", "write_environment"]

PREAMBLE = "import sys\nimport verifiers.v1 as vf\n"
UV = f"""#!/bin/sh
case "$*" in
  *--help*) echo --script;;
  "python find"*) echo {sys.executable};;
esac
"""


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a `uv` where verifiers looks first: the dependencies of its programs are in the tests' interpreter."""
    home = tmp_path / "home"
    uv = home / ".local" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    for name in ("PATH", "PYTHONPATH", "UV_PYTHON"):
        # Loading changes them. The fixture restores them.
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.delenv("UV_PYTHON")
    from verifiers.v1.runtimes import subprocess

    monkeypatch.setattr(subprocess, "CACHE_DIR", home / ".cache", raising=False)


@pytest.fixture(name="write_environment")
def write_v1(write_environment: Callable[..., EnvironmentConfig]) -> Callable[..., EnvironmentConfig]:
    """Write a module of the v1 form."""
    return partial(write_environment, preamble=PREAMBLE)


@pytest.fixture(name="make_group")
def make_patient_group(make_group: Callable[..., GroupRequest]) -> Callable[..., GroupRequest]:
    """Groups with a deadline far above what their programs need on a busy machine."""
    return partial(make_group, deadline_seconds=300.0)
