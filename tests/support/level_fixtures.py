"""Fixtures and hooks that the levels without a cluster share: a real S3, and collection without waste."""

import gc
import os
import socketserver
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from rlrun.storage.store import Store

from tests.support.seaweedfs import S3Server, running_for_all_workers
from tests.support.sharing import folder_of_all_workers
from tests.support.source_tree import ROOT

SLOW_FIXTURES = {"s3_server", "helm"}
COLLECTED_ALONE = {"test_fuzz.py"}
"""Modules whose tests take seconds to make. Only a call that names the module collects it, so that not every worker
pays for them.
"""

PROCESS_STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn"}
"""Audit events of Python: https://docs.python.org/3/library/audit_events.html."""
UNIT_TESTS = ROOT / "tests" / "unit"
QUICK_PROGRAMS = {"git", "uname"}
"""git lists the files of the tree in some milliseconds. Python's `platform` asks uname once, in the first test of a
process that imports an HTTP client, whichever test that is.
"""
_fast_test = ""

# Of more connections that a busy machine does not accept at once, the kernel resets some after a few seconds. Python's
# servers let 5 wait, fewer than a test with concurrent rollouts opens.
socketserver.TCPServer.request_queue_size = 128

# How long an example takes tells how busy the machine is, and nothing else.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 that all workers share, with a bucket of this worker's own."""
    with running_for_all_workers(folder_of_all_workers(tmp_path_factory)) as server:
        yield server.with_bucket(f"rlrun-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}")


@pytest.fixture
def store(s3_server: S3Server) -> Iterator[Store]:
    """A store with the right credentials."""
    store = s3_server.store()
    yield store
    store.close()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules of COLLECTED_ALONE unless they are named."""
    named = {Path(argument.partition("::")[0]).name for argument in config.args}
    return True if collection_path.name in COLLECTED_ALONE - named else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what needs a server or a built program: `make check` waits for neither."""
    for item in items:
        if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let no unit test that is not marked slow start a process."""
    global _fast_test
    is_fast = item.path.is_relative_to(UNIT_TESTS) and not item.get_closest_marker("slow")
    _fast_test = item.nodeid if is_fast else ""
    try:
        return (yield)
    finally:
        _fast_test = ""


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _fast_test and event in PROCESS_STARTS and QUICK_PROGRAMS.isdisjoint(arguments[:1]):
        pytest.fail(f"{_fast_test} starts a process: mark it slow")


def pytest_configure() -> None:
    """Watch for processes that tests start."""
    sys.addaudithook(_audit)


def pytest_collection_finish() -> None:
    """Leave modules and tests, which last until the end, out of garbage collections, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
