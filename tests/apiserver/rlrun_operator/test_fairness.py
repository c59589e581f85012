"""Thousand wrong runs of one tenant, and the time until another tenant's runs have a status."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kubernetes import client

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.rlrun_operator.conftest import Bench, Orchestrators, make_home, write_settings
from tests.apiserver.rlrun_operator.test_refused_objects import set_quota
from tests.support.seaweedfs import S3Server

WRONG_RUNS = 1000
PROBES = 20
AT_MOST = WRONG_RUNS // 10
"""Runs of the first tenant that may get a status between another tenant's event and its status."""


@dataclass(frozen=True)
class Tenants:
    """Two namespaces of one operator."""

    wrong: Bench
    quiet: Bench


@pytest.fixture
def tenants(
    api: client.ApiClient,
    control_plane: ControlPlane,
    s3_server: S3Server,
    orchestrators: Orchestrators,
    tmp_path: Path,
) -> Iterator[Tenants]:
    # The operator lists namespaces in this order, so the thousand runs come first.
    wrong, quiet = make_home(api, s3_server), make_home(api, s3_server)
    settings = write_settings(tmp_path / "settings.yaml", control_plane, s3_server, orchestrators, [wrong, quiet])
    found = Bench(api, wrong, settings, tmp_path, s3_server, orchestrators)
    yield Tenants(found, replace(found, namespace=quiet))
    for process in found.processes:
        if process.running:
            process.kill()


@dataclass(frozen=True)
class Probe:
    """A run of the quiet tenant: resource versions of its creation and of its status, and the time between."""

    created: int
    answered: int
    seconds: float


def version(run: dict[str, object]) -> int:
    metadata = run["metadata"]
    assert isinstance(metadata, dict)
    return int(metadata["resourceVersion"])


def probe(bench: Bench, name: str) -> Probe:
    began = time.monotonic()
    created = version(bench.create_run(name, model="tests/missing"))
    bench.wait(f"the status of {name}", lambda: bench.phase(name) == "Pending")
    return Probe(created, version(bench.run(name)), time.monotonic() - began)


def create_wrong_runs(bench: Bench) -> None:
    """Half of them name a model that does not exist, the ReplicaSets of the others are refused by a quota."""
    set_quota(bench, 0)
    bench.create_model()
    changes = [{"model": "tests/missing"}, {}]

    def create(number: int) -> None:
        bench.create_run(f"wrong-{number}", **changes[number % 2])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, range(WRONG_RUNS)))


def with_status(bench: Bench) -> Callable[[], int]:
    runs = "apis/rlrun.dev/v1alpha1"
    return lambda: sum(1 for run in bench.items(runs, "rlruns") if run.get("status"))


def test_wrong_runs_of_one_tenant_do_not_delay_another(
    tenants: Tenants, record_property: Callable[[str, object], None]
) -> None:
    create_wrong_runs(tenants.wrong)
    tenants.wrong.start_operator()
    answered = with_status(tenants.wrong)
    tenants.wrong.wait("the first status of a wrong run", answered)
    beside = [probe(tenants.quiet, f"beside-{i}") for i in range(PROBES)]
    assert answered() < WRONG_RUNS, "the wrong runs must still be waiting, or nothing was shown"
    written = [version(run) for run in tenants.wrong.items("apis/rlrun.dev/v1alpha1", "rlruns") if run.get("status")]
    overtaken = [sum(1 for other in written if p.created < other < p.answered) for p in beside]
    record_property("wrong runs between event and status", overtaken)
    record_property("seconds from event to status", [round(p.seconds, 2) for p in beside])
    assert max(overtaken) <= AT_MOST, f"statuses of wrong runs before each probe's: {overtaken}"
