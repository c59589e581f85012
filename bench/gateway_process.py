"""Rollout gateway in a separate process, with one permanent replica and one open group.

python -m bench.gateway_process --engine http://127.0.0.1:8000 --model owner/name --core 0

Prints the base URL of the group and serves until its standard input is closed. `--tokens N` limits responses.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.protocol.policy import PolicyRef
from rlrun.service.listening import MANY_CONNECTIONS
from rlrun.service.server import LimitedRunner
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroups
from rlrun_orchestrator.inference.gateway.request_router import RequestRouter
from rlrun_orchestrator.inference.gateway.sampling_rules import SamplingRules
from rlrun_orchestrator.inference.gateway.server import Gateway
from rlrun_orchestrator.inference.replica_pool import Replica, ReplicaAddresses, ReplicaPool
from rlrun_orchestrator.inference.sidecar_client import SidecarClient

POLICY = PolicyRef(version=0, digest="0" * 64, uri="s3://bench/policy")


async def serve(engine: str, model: str, tokens: int) -> None:
    """Serve on a free port until standard input ends."""
    async with gateway(engine, model, tokens) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def gateway(engine: str, model: str, tokens: int) -> AsyncIterator[str]:
    """Serve on a free port of this process. Yields the base URL of the group."""
    # As in `rlrun_orchestrator.app.attempt`.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=5, keepalive_timeout=3.0)
    async with aiohttp.ClientSession(connector=connector) as http:
        groups = LiveGroups(model)
        pool = ReplicaPool(http, _no_endpoints, groups.policies, poll_interval=60)
        replica = Replica(ReplicaAddresses(engine, engine), SidecarClient(http, engine), is_answering=True)
        pool.replicas[replica.endpoint] = replica
        router = RequestRouter(http, pool, groups, wait=5, deadline=60)
        rules = SamplingRules(Sampling(max_tokens=tokens, min_tokens=tokens))
        runner = LimitedRunner(Gateway(groups, rules, router, None).application(), connections=MANY_CONNECTIONS)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        # The base model works with any engine; its rollouts are recorded like those of a training group.
        group = groups.open(POLICY, base=True)
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/groups/{group.id}/v1"
        await runner.cleanup()


async def _no_endpoints() -> list[ReplicaAddresses]:
    return []


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway_process", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engine", required=True, help="base URL of the engine, without /v1")
    parser.add_argument("--model", default="stub", help="name of the engine's model")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per response")
    parser.add_argument("--core", type=int, help="the only core to run on")
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    asyncio.run(serve(args.engine, args.model, args.tokens))


if __name__ == "__main__":
    main()
