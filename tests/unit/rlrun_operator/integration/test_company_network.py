"""Real clients in a company's network: with what the operator puts into pods they use its proxy and its authority.

A container's process is started with the variables of the pod that the operator makes, after the init container that
writes the authorities.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path

import pytest
from rlrun.constants import CA_BUNDLE_CONTAINER, CA_BUNDLE_DIR, INFERENCE_PORT
from rlrun.protocol.storage_access import SERVER_VARIABLE
from rlrun.storage.manifest import ArtifactKind
from rlrun_operator.config.settings import OperatorSettings

from local_cluster.control_plane.pki import write_kubeconfig
from tests.support.built_children import Obj, build, containers, templates, variables
from tests.support.company_network import API, HUB, S3, TEACHER, WANDB, CompanyNetwork, company_network
from tests.support.fake_s3 import InMemoryStore
from tests.support.source_tree import PYTHONPATH

pytestmark = pytest.mark.slow

COMMIT = "1cfa9a7208912126459214e8b04321603b3df60c"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 1000}
SECONDS = 60
TEACHER_CALL = f"""
import asyncio
from rlrun.api.base.address_rules import INTERNET_ONLY
from rlrun.service.outgoing_client import OutgoingClient

async def main() -> None:
    client = OutgoingClient(INTERNET_ONLY)
    print(await client.post("https://{TEACHER}/v1/chat/completions", b"{{}}", timeout=10))
    await client.close()

asyncio.run(main())
"""
DIRECT_CALL = """
import asyncio, sys, os
import aiohttp
from rlrun.service.client import request

async def main() -> None:
    async with aiohttp.ClientSession() as session:
        print(await request(session, "GET", sys.argv[1], timeout=10, max_bytes=2**20))

asyncio.run(main())
"""
API_CALL = """
import asyncio, sys
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun.kube.kinds import RLRUN

async def main() -> None:
    kube = AsyncKubeClient(AsyncApiTransport(await load_configuration(sys.argv[1])))
    print(await kube.list(RLRUN, "team", {}))
    await kube.close()

asyncio.run(main())
"""


@dataclass
class Company:
    """The network, and the pods that the operator makes for it."""

    network: CompanyNetwork
    folder: Path

    def pod(self, component: str, *, trusts: bool = True, has_proxy: bool = True, source: str = "") -> Obj:
        """Return the template of a pod: the run's trainer, inference or orchestrator, or an environment."""
        settings = OperatorSettings.model_validate(
            {
                "s3": {"endpoint": f"https://{S3}", "bucket": "rlrun"},
                "caBundle": self.network.certificates if trusts else "",
                "proxy": {"httpsProxy": self.network.proxy, "noProxy": [".svc", "127.0.0.0/8"]} if has_proxy else {},
            }
        )
        env = [{"name": "HF_ENDPOINT", "value": f"https://{HUB}"}]
        model = {"source": source or f"hf://a/b@{COMMIT}", "trainer": {"env": env}, "inference": {"env": env}}
        found = templates(build(model, settings=settings))
        (template,) = [made for name, made in found.items() if name.startswith(f"reverse-{component}")]
        return template

    async def start(self, pod: Obj, name: str, *command: str, **changes: str) -> tuple[int, str]:
        """Run a container's process, or another `command` in it, after the init container with the authorities.

        Returns the exit code and the output. An empty variable of `changes` is left out.
        """
        both = {c["name"]: c for c in containers(pod)}
        for entry in [CA_BUNDLE_CONTAINER, name] if CA_BUNDLE_CONTAINER in both else [name]:
            spec = both[entry]
            words = [*spec.get("command", ()), *spec.get("args", ())]
            code, text = await self.run(
                [*(command if command and entry == name else words)],
                {v["name"]: v["value"] for v in spec["env"] if "value" in v} | (changes if entry == name else {}),
            )
            if code:
                break
        return code, text

    async def succeed(self, ending: Awaitable[tuple[int, str]]) -> str:
        """Return the output of a process that has to succeed."""
        code, output = await ending
        assert code == 0, output
        return output

    async def run(self, words: list[str], variables: dict[str, str]) -> tuple[int, str]:
        """Run one process, with this test's folder in place of the pod's."""

        def local(text: str) -> str:
            moved = text.replace(CA_BUNDLE_DIR, str(self.folder / "ca")).replace("/models", str(self.folder / "models"))
            return sys.executable if moved == "python" else moved

        environment = {name: local(value) for name, value in variables.items() if value}
        environment |= {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "HOME": str(self.folder)}
        environment["RLRUN_TERMINATION_LOG"] = str(self.folder / "termination-log")
        process = await asyncio.create_subprocess_exec(
            *map(local, words),
            env=environment,
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
        return process.returncode or 0, output.decode()


@pytest.fixture
async def company(tmp_path: Path) -> AsyncIterator[Company]:
    for name in ("ca", "models"):
        (tmp_path / name).mkdir()
    async with company_network(tmp_path) as network:
        network.model = dict(FILES)
        yield Company(network, tmp_path)


def fetched(company: Company) -> dict[str, bytes]:
    folder = company.folder / "models" / "base"
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}


async def test_a_model_of_the_hub_is_fetched(company: Company) -> None:
    for component in ("trainer", "inference"):
        code, output = await company.start(company.pod(component), "fetch-model", HF_HUB_DISABLE_XET="1")
        assert code == 0, output
        assert fetched(company) == FILES
        assert set(company.network.connections) == {f"{HUB}:443"}


@pytest.mark.parametrize("missing", ["trusts", "has_proxy"])
async def test_without_the_authority_or_the_proxy_nothing_is_fetched(company: Company, missing: str) -> None:
    code, output = await company.start(company.pod("trainer", **{missing: False}), "fetch-model")
    assert code == 1, output
    assert fetched(company) == {}
    assert not company.network.requests
    problem = json.loads((company.folder / "termination-log").read_text())
    assert problem["reason"] == "ModelHubUnreachable"


async def test_a_mirror_of_the_hub_in_a_network_of_no_proxy_is_reached_directly(company: Company) -> None:
    variables = {"HF_ENDPOINT": company.network.inside, "HTTP_PROXY": "http://127.0.0.1:1", "HF_HUB_DISABLE_XET": "1"}
    await company.succeed(company.start(company.pod("trainer"), "fetch-model", **variables))
    assert fetched(company) == FILES
    assert not company.network.connections


async def test_a_model_in_s3_is_fetched(company: Company) -> None:
    store = InMemoryStore("rlrun")
    store.publish("s3://rlrun/m", FILES, ArtifactKind.model)
    company.network.s3.objects = dict(store.s3.data)
    code, output = await company.start(
        company.pod("trainer", source="s3://rlrun/m"),
        "fetch-model",
        # Keys in place of rlrun-server, whose requests never use a proxy.
        **{SERVER_VARIABLE: "", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
    )
    assert code == 0, output
    assert fetched(company) == FILES
    assert set(company.network.connections) == {f"{S3}:443"}


async def test_an_orchestrator_reaches_its_teacher(company: Company) -> None:
    output = await company.succeed(
        company.start(company.pod("orchestrator"), "orchestrator", "python", "-c", TEACHER_CALL)
    )
    assert "fine" in output
    assert company.network.connections == [f"{TEACHER}:443"]


@pytest.mark.parametrize(
    "call",
    [
        "wandb.Api(api_key='0' * 40, timeout=5).viewer",
        "wandb.init(project='p', dir='.', settings=wandb.Settings(init_timeout=6, login_timeout=6, silent=True))",
    ],
    ids=["python", "service"],
)
async def test_the_client_of_weights_and_biases_uses_both(company: Company, call: str) -> None:
    """It has a part in Python and a service in Go, which sends the metrics."""
    script = "\n".join(
        (
            "import os, sys",
            "from rlrun_orchestrator.reporting.wandb_client import PASSED_ON",
            "kept = {k: v for k, v in os.environ.items() if k in PASSED_ON or k in ('WANDB_BASE_URL', 'PYTHONPATH')}",
            "os.environ.clear(); os.environ.update(kept)",
            "import wandb",
            "os.environ['WANDB_API_KEY'] = '0' * 40",
            call,
        )
    )
    _, output = await company.start(
        company.pod("orchestrator"), "orchestrator", "python", "-c", script, WANDB_BASE_URL=f"https://{WANDB}"
    )
    assert set(company.network.connections) == {f"{WANDB}:443"}, output
    assert {r.split("/")[0] for r in company.network.requests} == {f"POST {WANDB}"}, output


@pytest.mark.parametrize("component", ["trainer", "inference", "orchestrator"])
async def test_processes_of_a_run_never_reach_each_other_through_the_proxy(company: Company, component: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\ndirect")
        writer.close()

    pod = company.pod(component)
    name = {"inference": "sidecar"}.get(component, component)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        proxy = dict.fromkeys(("HTTP_PROXY", "http_proxy"), company.network.proxy) | {"NO_PROXY": "", "no_proxy": ""}
        output = await company.succeed(company.start(pod, name, "python", "-c", DIRECT_CALL, url, **proxy))
    assert "direct" in output
    assert not company.network.connections


async def test_an_environment_trusts_the_authority_and_has_no_proxy_of_the_platform(company: Company) -> None:
    *_, main = containers(company.pod("env-0"))
    names = variables(main)
    assert "SSL_CERT_FILE" in names
    assert not {name for name in names if name.lower().endswith("_proxy")}


async def test_users_reach_rlrun_server_through_the_proxy(company: Company) -> None:
    script = f"""
from rlrun_cli.remote.server import DirectServer
print(DirectServer("https://{API}", lambda: "token").send("GET", "/rlrun/v1/whoami", None))
"""
    authority = str(company.network.authority.pair.certificate)
    variables = {"HTTPS_PROXY": company.network.proxy, "SSL_CERT_FILE": authority}
    await company.succeed(company.run(["python", "-c", script], variables))
    assert set(company.network.connections) == {f"{API}:443"}


def kubeconfig(company: Company, *, proxy_url: bool) -> Path:
    """A kubeconfig for the API server of the network."""
    file = company.folder / "kubeconfig"
    authority = company.network.authority
    user = authority.issue("user", "user")
    write_kubeconfig(file, f"https://{API}", authority, user, "company")
    if proxy_url:
        server = f"server: https://{API}"
        file.write_text(file.read_text().replace(server, f"{server}\n    proxy-url: {company.network.proxy}"))
    return file


@pytest.mark.parametrize("client", ["operator", "rlrun"])
@pytest.mark.parametrize("proxy_url", [True, False])
async def test_an_api_server_behind_a_proxy_is_reached(company: Company, client: str, proxy_url: bool) -> None:
    """With `proxy-url`, and a variable that names no proxy; without it, by the variable alone."""
    file = str(kubeconfig(company, proxy_url=proxy_url))
    words = {
        "operator": ["python", "-c", API_CALL, file],
        "rlrun": ["python", "-m", "rlrun_cli", "list", "-n", "team", "--kubeconfig", file],
    }[client]
    closed = f"http://127.0.0.1:{INFERENCE_PORT}"
    variables = {"HTTPS_PROXY": closed, "NO_PROXY": API} if proxy_url else {"HTTPS_PROXY": company.network.proxy}
    await company.succeed(company.run(words, variables | {"HTTP_PROXY": closed}))
    assert set(company.network.connections) == {f"{API}:443"}
    assert all(r.startswith(f"GET {API}/") for r in company.network.requests)
