"""Garbage collection by the operator, with its own rights."""

import uuid

import pytest
from rlrun.storage.layout import RunLayout

from demo.install import BUCKET, CHART, RELEASE, SYSTEM_NAMESPACE, chart_values
from demo.kubectl import wait_for
from tests.e2e.conftest import SECONDS, Platform

# The chart is changed. tests/apiserver/rlrun_cli/test_gc.py asks the same in seconds.
pytestmark = [pytest.mark.alone, pytest.mark.extended]


def test_the_operator_reports_unreferenced_items_and_deletes_none(platform: Platform) -> None:
    kubectl, store = platform.kubectl, platform.s3.store()
    layout = RunLayout.of(BUCKET, "", "nobody", str(uuid.uuid4()))
    store.put_bytes(layout.run_json, b"{}")
    local = ["-n", SYSTEM_NAMESPACE, *chart_values(platform.s3), "--wait", "--timeout", "400s"]
    values = "gc.enabled=true,gc.olderThan=0s,gc.interval=1m"
    kubectl.helm("upgrade", RELEASE, str(CHART), *local, "--set", values, timeout=420)
    try:
        found = f"Folder {layout.root}: RunUnknown"

        def report() -> str | None:
            said = kubectl("logs", f"deployment/{RELEASE}-operator", "-n", SYSTEM_NAMESPACE)
            return said if found in said and "unknown items, kept" in said else None

        said = wait_for("the report of a sweep", report, SECONDS)
        assert "secrets were skipped" in said, "a permission to list Secrets is one to read them"
        assert "Garbage collection failed" not in said
        assert store.get_bytes(layout.run_json) == b"{}"
    finally:
        kubectl.helm("upgrade", RELEASE, str(CHART), *local, timeout=420)
        store.delete_prefix(layout.root)
