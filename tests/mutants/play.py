"""Runs tests with a module's code changed in memory; no file is written.

Every run is a fork of one process that has imported pytest, the large libraries and, for changes of a program, core:
these imports take longer than most tests.
"""

import ast
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from tests.support.deadline import DeadlineExceeded, deadline

LIBRARIES = ("hypothesis", "pydantic", "pytest_asyncio", "aiohttp", "boto3", "kubernetes.aio", "torch", "transformers")
"""Imported before the first fork, if they are installed."""
CORE = (
    "rlrun.api.run",
    "rlrun.api.model",
    "rlrun.kube.async_client",
    "rlrun.protocol.resolved",
    "rlrun.storage.transfer",
)
"""Modules that most tests need and that import no program, so that no program's change can be behind them."""
MEMORY = 4 * 2**30
"""Bytes of address space that a run may add to those of the process that it was forked from."""
STOPPED = -1
"""Code of a run that was stopped at its deadline."""


@dataclass(frozen=True)
class Run:
    """Outcome of one run of tests."""

    code: int
    """Exit code of pytest: 0 passed, 1 failed, others: could not run. -1: stopped at the deadline."""
    seconds: float
    applied: bool = False
    """True if the tests executed the changed code."""


def import_libraries() -> None:
    """Import what nearly every test needs, once for all forks."""
    _import(LIBRARIES)


def import_core() -> None:
    """Import what the tests of the programs need of core. Not for changes of core itself."""
    _import(CORE)


def _import(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # A collection in a fork would copy every page of what is imported here.
    gc.freeze()


def run(tests: Sequence[str], seconds: float, module: Path | None = None, tree: ast.Module | None = None) -> Run:
    """Run tests in a fork, up to the first failure, with the code of the module replaced."""
    started = time.monotonic()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(tests, module, tree, write)
    os.close(write)
    try:
        code = _wait(pid, seconds)
        os.set_blocking(read, False)
        with contextlib.suppress(BlockingIOError):
            return Run(code, time.monotonic() - started, bool(os.read(read, 1)))
        return Run(code, time.monotonic() - started)
    finally:
        os.close(read)


def _child(tests: Sequence[str], module: Path | None, tree: ast.Module | None, applied: int) -> None:
    code: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        if module is not None and tree is not None:
            sys.meta_path.insert(0, _Changed(module, tree, applied))
        # Examples of hypothesis are the same in every run, or a score would not be.
        code = pytest.main(
            [*tests, "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-p", "no:xdist"]
        )
    finally:
        os._exit(code)


def _wait(pid: int, seconds: float) -> int:
    """Return the exit code of the child, STOPPED if it had to be killed with all that it had started."""
    try:
        with deadline(seconds):
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if isinstance(error, DeadlineExceeded):
            return STOPPED
        raise


class _Changed(importlib.abc.MetaPathFinder):
    """Finds one module as Python would, with other code."""

    def __init__(self, module: Path, tree: ast.Module, applied: int) -> None:
        self.module = module.resolve()
        self.code = compile(tree, str(module), "exec")
        self.applied = applied

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Return the spec of the changed module, None for all others."""
        if name.rpartition(".")[2] != self.module.stem:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is None or found.origin is None or Path(found.origin).resolve() != self.module:
            return None
        loader = cast("Any", found.loader)
        loader.exec_module = self._execute
        return found

    def _execute(self, module: ModuleType) -> None:
        os.write(self.applied, b"x")
        exec(self.code, module.__dict__)
