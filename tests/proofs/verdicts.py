"""Plugin of pytest: runs each test as it is, then once more for each field that it cites, with that field removed.

One process plays many fields, because its start takes longer than most tests. Fixtures below session scope are made
anew for every run; those of session scope, such as the S3 server, are made without any removal.

RLRUN_PROOF_FIELDS names the fields, separated by commas. With RLRUN_PROOF_EVERY=1 a field is played on although a test
has already noticed its removal. Each verdict is printed as one line of JSON after `MARK`:

passed    the test did not notice the removal
failed    it did
unclear   it failed for a reason that says nothing: the spec became invalid, its surroundings did not come up, or it
          fails afterwards with the field as well
broken    it fails without any removal
skipped   it does not run here
"""

import functools
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.support.deadline import deadline

MARK = "field-proof-verdict "
FIELD = "RLRUN_REMOVED_FIELD"
UNCLEAR = ("ValidationError", "ImportError", "FixtureLookupError")
"""Exceptions that say nothing about the field."""
BASELINE_SECONDS = 300
CACHED = type(functools.cache(len))
"""Type of functions that keep their results."""


class FieldRemoval:
    """State of one pytest process."""

    def __init__(self) -> None:
        self.fields = set(filter(None, os.environ.get("RLRUN_PROOF_FIELDS", "").split(",")))
        self.every = bool(os.environ.get("RLRUN_PROOF_EVERY"))
        self.red: set[str] = set()
        self.error: BaseException | None = None
        self.lines: Any = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put cheap tests first, which may make others unnecessary: pure ones, those that wait, then the slow."""

        def cost(item: pytest.Item) -> tuple[bool, bool]:
            waits = inspect.iscoroutinefunction(getattr(item, "function", None))
            return item.get_closest_marker("slow") is not None, waits

        items.sort(key=cost)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run the test without a removal, then with those of its fields that no test has noticed yet."""
        if wanted := self._wanted(item):
            verdict, error, before = self._run(item, "", BASELINE_SECONDS)
            if verdict != "passed":
                for field in wanted:
                    self._say(item, field, verdict if verdict == "skipped" else "broken", error, before)
                wanted = []
            for field in wanted:
                verdict, error, seconds = self._run(item, field, 30 + 5 * int(before))
                if verdict == "failed":
                    verdict, error = self._confirmed(item, error)
                self._say(item, field, verdict, error, seconds)
                if verdict == "failed":
                    self.red.add(field)
        if nextitem is None:
            item.session._setupstate.teardown_exact(None)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Keep the exception itself, of which the report has only the text. pytest itself is not to be interrupted."""
        seconds, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        if call.excinfo is not None and self.error is None:
            self.error = call.excinfo.value
        try:
            return (yield)
        finally:
            if call.when != "teardown":
                # After a hang the teardown, too, may wait for what does not come.
                signal.setitimer(signal.ITIMER_REAL, seconds or 30)

    def _wanted(self, item: pytest.Item) -> list[str]:
        cited = [field for mark in item.iter_markers("proves") for field in mark.args if field in self.fields]
        return [field for field in cited if self.every or field not in self.red]

    def _run(self, item: pytest.Item, field: str, limit: int) -> tuple[str, str, float]:
        """Return verdict, error and seconds of one run of the test."""
        clear_caches()
        self.error, os.environ[FIELD], started = None, field, time.monotonic()
        with deadline(limit):
            # The session in place of the next test: all fixtures but those of the session are torn down.
            reports = runtestprotocol(item, log=False, nextitem=item.session)  # type: ignore[arg-type]
        os.environ[FIELD] = ""
        return *verdict(reports, self.error), round(time.monotonic() - started, 2)

    def _confirmed(self, item: pytest.Item, error: str) -> tuple[str, str]:
        """Return the verdict on a failure: it counts if the test passes again once the field is back.

        An earlier test that was interrupted in its teardown can leave files or fixtures that fail the next one.
        """
        verdict, again, _ = self._run(item, "", BASELINE_SECONDS)
        return ("failed", error) if verdict == "passed" else ("unclear", f"fails with the field as well: {again}")

    def _say(self, item: pytest.Item, field: str, verdict: str, error: str, seconds: float) -> None:
        name = item.nodeid.partition("[")[0]
        said = {"test": name, "field": field, "verdict": verdict, "error": error, "seconds": seconds}
        reporter = item.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.ensure_newline()
        reporter.write_line(MARK + json.dumps(said), flush=True)


def clear_caches() -> None:
    """Clear the caches of the product's functions: one of them may keep a spec with or without the field."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0].startswith("rlrun"):
            for value in list(vars(module).values()):
                if isinstance(value, CACHED):
                    value.cache_clear()


def verdict(reports: list[pytest.TestReport], error: BaseException | None) -> tuple[str, str]:
    """Return the verdict on one run, and the first line of its error."""
    failed = [report for report in reports if report.failed]
    if not failed:
        return ("skipped" if any(report.skipped for report in reports) else "passed"), ""
    names = {cls.__name__ for cls in type(error).__mro__}
    text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    clear = failed[0].when == "call" or isinstance(error, AssertionError)
    return ("failed" if clear and not names.intersection(UNCLEAR) else "unclear"), text


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(FieldRemoval(), "field-removal")
