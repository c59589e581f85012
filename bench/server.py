"""Benchmark of rlrun-server: lists of runs for many clients, compared with the API server's lists.

    python -m bench.server                      1,000 runs, five repetitions (about 5 minutes)
    python -m bench.server --runs 20 --repeats 1

API server, etcd, S3 and rlrun-server are real processes of this machine and share its cores with the clients. Each
client sends its requests one after another. The two servers alternate.
"""

import argparse
import asyncio
import ssl
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import aiohttp
from kubernetes import client, config

from bench import machine_load
from bench.repetitions import percentile
from bench.report import Result, at_most, record
from bench.scale.testbed import objects
from local_cluster.control_plane.without_nodes import ControlPlane
from tests.support.crds import install_crds
from tests.support.seaweedfs import running
from tests.support.server_process import server_process

RUNS, REPEATS, CLIENTS, REQUESTS = 1000, 5, 20, 30
NAMESPACE, ROLE, RBAC = "bench", "bench-user", "rbac.authorization.k8s.io"
CREATORS = 8
STATUS = {
    "phase": "Running",
    "observedGeneration": 1,
    "attempt": 1,
    "startTime": "2026-01-01T00:00:00Z",
    "attemptStartTime": "2026-01-01T00:00:00Z",
    "progress": {"step": 500, "maxSteps": 1000, "reward": 0.5, "etaSeconds": 600},
}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench.server", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs in the namespace ({RUNS})")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"repetitions ({REPEATS})")
    machine_load.add_option(parser)
    args = parser.parse_args()
    machine_load.require_idle(args.busy)
    with ControlPlane() as control_plane, tempfile.TemporaryDirectory() as name:
        folder, api = Path(name), config.new_client_from_config(str(control_plane.kubeconfig))
        install_crds(api)
        headers = [{"Authorization": f"Bearer {token}"} for token in create_users(api)]
        create_runs(api, args.runs)
        path = f"namespaces/{NAMESPACE}"
        peer = f"{api.configuration.host}/apis/rlrun.dev/v1alpha1/{path}/rlruns?limit=50"
        context = ssl.create_default_context(cafile=api.configuration.ssl_ca_cert)
        with running(folder / "s3") as s3, server_process(folder / "server", control_plane.kubeconfig, s3) as url:
            ours = f"{url}/rlrun/v1/{path}/runs"
            load = [machine_load.settled_load()]
            found: tuple[list[list[float]], list[list[float]]] = ([], [])
            for repetition in range(args.repeats):
                for side in (0, 1) if repetition % 2 else (1, 0):
                    asked = (ours, None) if side == 0 else (peer, context)
                    found[side].append(asyncio.run(measure_requests(asked[0], headers, REQUESTS, asked[1])))
    record("server", result_of(*found, args.runs, load))
    return 0


def create_users(api: client.ApiClient) -> list[str]:
    """Create accounts that may read the runs. Returns the accounts' tokens."""
    core, rbac = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api)
    core.create_namespace({"metadata": {"name": NAMESPACE}})
    rules = [{"apiGroups": [objects.RUNS[0]], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
    rbac.create_cluster_role({"metadata": {"name": ROLE}, "rules": rules})
    tokens = []
    # The accounts of one namespace are one user for the server's limits.
    for name in (f"user-{number}" for number in range(CLIENTS)):
        core.create_namespace({"metadata": {"name": name}})
        core.create_namespaced_service_account(name, {"metadata": {"name": "user"}})
        asked = {"spec": {"expirationSeconds": 7200}}
        tokens.append(str(core.create_namespaced_service_account_token("user", name, asked).status.token))
        subject = {"kind": "ServiceAccount", "name": "user", "namespace": name}
        reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": ROLE}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        rbac.create_namespaced_role_binding(NAMESPACE, binding)
    return tokens


def create_runs(api: client.ApiClient, count: int) -> None:
    """Create runs that train."""
    runs = client.CustomObjectsApi(api)

    def create(number: int) -> None:
        body = objects.run(number)
        runs.create_namespaced_custom_object(*objects.RUNS, NAMESPACE, "rlruns", body)
        place = (*objects.RUNS, NAMESPACE, "rlruns", body["metadata"]["name"])
        runs.patch_namespaced_custom_object_status(*place, {"status": STATUS})

    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(create, range(count)))


async def measure_requests(
    url: str, headers: Sequence[Mapping[str, str]], count: int, context: ssl.SSLContext | None = None
) -> list[float]:
    """Return the seconds of each of the `count` requests per client. `headers` has one entry per client.

    Each client has its own connection, opened by an uncounted request. Raises RuntimeError for a response other than
    200.
    """
    ready = asyncio.Barrier(len(headers))

    async def send(session: aiohttp.ClientSession, own: Mapping[str, str]) -> float:
        began = time.perf_counter()
        async with session.get(url, headers=own) as response:
            body = await response.read()
        seconds = time.perf_counter() - began
        if response.status != 200:
            raise RuntimeError(f"GET {url}: {response.status} {body[:300]!r}")
        return seconds

    async def client_of(own: Mapping[str, str]) -> list[float]:
        connector = aiohttp.TCPConnector(limit=1, ssl=context if context is not None else True)
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await send(session, own)
            await ready.wait()
            return [await send(session, own) for _ in range(count)]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client_of(own)) for own in headers]
    return [seconds for task in tasks for seconds in task.result()]


def result_of(
    ours: Sequence[Sequence[float]], peer: Sequence[Sequence[float]], runs: int, load: Sequence[float]
) -> Result:
    """Return the row. `ours` and `peer` are the seconds of each request, by repetition."""
    tails, peers = ([1000 * percentile(seconds, 99) for seconds in side] for side in (ours, peer))
    p50s = [1000 * median(percentile(seconds, 50) for seconds in side) for side in (ours, peer)]
    return Result(
        name="runs",
        what=f"GET of a page of 50 of {runs} runs, {CLIENTS} clients without a pause: p99 of a repetition",
        ratio=median(tails),
        aim=at_most(200.0),
        unit="ms p99",
        samples=[{"p99_ms": ms, "peer_p99_ms": theirs} for ms, theirs in zip(tails, peers, strict=True)],
        notes=[
            f"p50 {p50s[0]:.0f} ms; kube-apiserver with 50 RLRuns to the same clients: "
            f"p50 {p50s[1]:.0f} and p99 {median(peers):.0f} ms"
        ],
        repetitions=tails,
        cores_busy=load,
    )


if __name__ == "__main__":
    sys.exit(main())
