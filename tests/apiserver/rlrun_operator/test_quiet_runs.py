"""Count the looks at a run and their requests while nothing changes."""

import re
import time
import urllib.request

import pytest
import yaml

from tests.apiserver.rlrun_operator.conftest import WAIT_SECONDS, Bench, Process
from tests.apiserver.rlrun_operator.test_operator import BATCH, CORE, started

QUIET_SECONDS = 20.0
"""Long enough for 40 looks at the pace of this level's settings."""

SHARED_READS = QUIET_SECONDS / 2 + QUIET_SECONDS / 10 + 2
"""Reads in that time that all runs share: the Lease every few seconds, and the platform's Secret every ten."""
RARE_SWEEPS = {"resyncSeconds": 10 * WAIT_SECONDS, "artifactSweepSeconds": 10 * WAIT_SECONDS}
LISTINGS = "rlrun_s3_listings_total"
POLL_ERRORS = "rlrun_poll_errors_total"
BYTES_PER_RUN = 25_000
BYTES_PER_MODEL = 1_500
RUNS_AT_ONCE = 10
APPLIED = r'rlrun_api_requests_total\{[^}]*verb="(?:apply|patch)\w*"[^}]*\}'


def metric(process: Process, pattern: str) -> float:
    """Return the sum of the operator's metrics with this name and labels."""
    (port,) = re.findall(r"/metrics on port (\d+)", process.log.read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return sum(float(count) for count in re.findall(rf"^{pattern} (\S+)$", text, re.M))


def looks(process: Process) -> float:
    """Return the number of looks at runs that the operator has made."""
    return metric(process, "rlrun_reconcile_duration_seconds_count")


def reads(process: Process) -> float:
    """Return the number of reads at the API server."""
    return metric(process, r'rlrun_api_requests_total\{[^}]*verb="(?:get|list)"[^}]*\}')


def start_with_rare_sweeps(bench: Bench) -> Process:
    """Start an operator that lists runs and files so rarely that no test sees it."""
    settings = yaml.safe_load(bench.settings.read_text())
    bench.settings.write_text(yaml.safe_dump({**settings, **RARE_SWEEPS}))
    return bench.start_operator()


def train(bench: Bench) -> None:
    """Start a run, and wait until its status shows step 3 and nothing changes."""
    started(bench, checkpoints={"interval": 10})
    bench.tell(step=3, startedAt="2026-01-01T00:00:00Z")
    bench.wait("step 3", lambda: bench.run()["status"].get("progress", {}).get("step") == 3)
    bench.wait_until_unchanged(3)


def test_a_quiet_run_is_not_looked_at_and_a_change_is_seen_at_once(own_bench: Bench) -> None:
    bench, process = own_bench, start_with_rare_sweeps(own_bench)
    train(bench)
    # Runs and models that other tests left on this API server are kept as well.
    runs, models = bench.count("rlruns"), bench.count("rlmodels")
    assert 1_000 < metric(process, "rlrun_cache_bytes") <= BYTES_PER_RUN * runs + BYTES_PER_MODEL * models
    before, read, listed = looks(process), reads(process), metric(process, LISTINGS)
    written = bench.run()["metadata"]["resourceVersion"]
    time.sleep(QUIET_SECONDS)
    assert looks(process) - before <= 2
    assert reads(process) - read <= SHARED_READS
    assert bench.run()["metadata"]["resourceVersion"] == written

    looked = looks(process)
    for step in (4, 5):
        told, read, writes = time.monotonic(), reads(process), metric(process, APPLIED)
        bench.tell(step=step, startedAt="2026-01-01T00:00:00Z")
        bench.wait(f"step {step}", lambda step=step: bench.run()["status"]["progress"]["step"] == step)
        assert time.monotonic() - told < QUIET_SECONDS
        assert reads(process) - read <= SHARED_READS
        assert metric(process, APPLIED) - writes == 1
    assert looks(process) - looked <= 1, "the progress was written without a look"
    assert metric(process, LISTINGS) == listed
    bench.tell(step=10, startedAt="2026-01-01T00:00:00Z")
    bench.wait("lists of S3 for a checkpoint that is due", lambda: metric(process, LISTINGS) > listed)


def test_a_run_whose_orchestrator_does_not_answer_costs_no_requests(own_bench: Bench) -> None:
    bench, process = own_bench, start_with_rare_sweeps(own_bench)
    train(bench)
    del bench.orchestrators.answers[bench.namespace, "reverse"]
    bench.wait("requests without an answer", lambda: metric(process, POLL_ERRORS) >= 3)
    before, read = looks(process), reads(process)
    time.sleep(QUIET_SECONDS)
    assert looks(process) - before <= 2
    assert reads(process) - read <= SHARED_READS
    shown = lambda: bench.condition("OrchestratorReady").get("reason")  # noqa: E731
    bench.wait("the condition", lambda: shown() == "OrchestratorUnreachable")
    told = time.monotonic()
    bench.tell(step=4, startedAt="2026-01-01T00:00:00Z")
    bench.wait("step 4", lambda: bench.run()["status"]["progress"]["step"] == 4)
    assert time.monotonic() - told < QUIET_SECONDS
    assert shown() != "OrchestratorUnreachable"


def test_a_run_that_waits_costs_looks_and_no_requests(own_bench: Bench) -> None:
    bench, process = own_bench, start_with_rare_sweeps(own_bench)
    bench.create_model()
    bench.create_run()
    bench.wait("children", lambda: bench.get(BATCH, "jobs", "reverse-orchestrator-a1"))
    bench.wait_until_unchanged(3)
    before, read, listed = looks(process), reads(process), metric(process, LISTINGS)
    time.sleep(QUIET_SECONDS)
    assert looks(process) - before >= 5, "a run whose pods do not start is looked at often"
    assert metric(process, LISTINGS) == listed
    assert reads(process) - read <= SHARED_READS


def test_new_runs_are_not_read(own_bench: Bench) -> None:
    """They cost 13 objects each, a status and an Event. They share the Secret of the platform, and lists of models."""
    bench, process = own_bench, start_with_rare_sweeps(own_bench)
    started(bench)
    bench.wait_until_unchanged(3)
    objects = r'rlrun_api_requests_total\{kind="(?!rlruns|rlmodels)\w+",verb="apply"\}'
    of_each = r'rlrun_api_requests_total\{kind="(?!leases|secrets|rlmodels)\w+",verb="(?:get|list)"\}'
    of_all = r'rlrun_api_requests_total\{kind="(?:secrets|rlmodels)",verb="(?:get|list)"\}'
    before = [metric(process, pattern) for pattern in (objects, of_each, of_all)]
    names = [f"other-{index}" for index in range(RUNS_AT_ONCE)]
    for name in names:
        bench.create_run(name)
    for name in names:
        bench.wait(f"the status of {name}", lambda name=name: bench.run(name).get("status", {}).get("phase"))
    made, read, shared = (
        metric(process, pattern) - count for pattern, count in zip((objects, of_each, of_all), before, strict=True)
    )
    assert (made, read) == (13 * RUNS_AT_ONCE, 0)
    assert shared <= RUNS_AT_ONCE, "most runs of a burst need none of their own"


def test_a_start_lists_each_kind_once_for_all_runs_and_writes_nothing(own_bench: Bench) -> None:
    bench = own_bench
    process = bench.start_operator()
    names = ["reverse", *(f"other-{index}" for index in range(1, RUNS_AT_ONCE))]
    started(bench)
    for name in names[1:]:
        bench.create_run(name)
    for name in names[1:]:
        bench.wait(f"children of {name}", lambda name=name: bench.get(BATCH, "jobs", f"{name}-orchestrator-a1"))
        bench.wait(f"the status of {name}", lambda name=name: bench.run(name).get("status", {}).get("phase"))
    bench.wait_until_unchanged(3)
    versions = [bench.run(name)["metadata"]["resourceVersion"] for name in names]
    process.terminate()
    process = bench.start_operator()
    bench.wait("looks at all runs", lambda: "on port" in process.log.read_text() and looks(process) >= len(names))
    for kind in ("pods", "services", "networkpolicies", "replicasets", "jobs", "rlcheckpoints"):
        count = metric(process, rf'rlrun_api_requests_total\{{kind="{kind}",verb="list"\}}')
        # kopf lists the kinds of rlrun.dev as well.
        assert 1 <= count <= 1 + (kind == "rlcheckpoints"), f"{kind}: one list for all runs"
    # The number of runs in the status of a model is written with each list of all runs. Dry runs judge the pods of each
    # model, those of other tests as well, after each start: trainer and engine.
    writes = r'rlrun_api_requests_total\{kind="(?!rlmodels|pods)\w+",verb="(?:apply|patch|create)"\}'
    assert metric(process, writes) == 0
    dry_runs = metric(process, r'rlrun_api_requests_total\{kind="pods",verb="create"\}')
    assert dry_runs <= 2 * bench.count("rlmodels")
    assert [bench.run(name)["metadata"]["resourceVersion"] for name in names] == versions


@pytest.mark.parametrize(
    ("place", "name"), [((CORE, "services"), "reverse-trainer"), ((CORE, "configmaps"), "reverse-config")]
)
def test_a_child_that_is_deleted_comes_back_at_once(own_bench: Bench, place: tuple[str, str], name: str) -> None:
    bench = own_bench
    start_with_rare_sweeps(bench)
    started(bench)
    bench.wait_until_unchanged(3)
    api, plural = place
    bench.call("DELETE", f"/{api}/namespaces/{bench.namespace}/{plural}/{name}")
    deleted = time.monotonic()
    bench.wait(f"a new {name}", lambda: bench.get(api, plural, name))
    assert time.monotonic() - deleted < 2 * QUIET_SECONDS
