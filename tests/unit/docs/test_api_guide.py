"""The requests of docs/guides/api.md, as they are written there."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.completion_engine import CompletionEngine
from tests.support.inference_api import adapter, serving_inference_api
from tests.support.rest_api import RestApi, rest_api, run_object

GUIDE = (Path(__file__).parents[3] / "docs/guides/api.md").read_text()
ALL = [line for line in GUIDE.splitlines() if line.startswith("curl ")]
INFERENCE = [line for line in ALL if '"$SERVER/v1/' in line]
COMMANDS = [line for line in ALL if line not in INFERENCE]
RUN_FILE = b'model = "Qwen/Qwen3-4B"\n[sampling]\nmax_tokens = 64\n[[env]]\nid = "acme/reverse"\n'
RIGHTS = [
    *(f"{verb} rlruns in team" for verb in ("get", "list", "create", "patch", "delete")),
    *(f"{verb} {kind} in team" for verb in ("get", "list") for kind in ("rlcheckpoints", "rladapters")),
    "get rlruns/metrics in team",
    "update secrets in team",
]


@pytest.fixture
def api() -> RestApi:
    found = rest_api()
    found.add(run_object("first"))
    return found


def test_the_guide_has_commands() -> None:
    assert len(COMMANDS) > 12
    assert len(INFERENCE) == 2
    assert all("$SERVER/rlrun/v1/" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
async def test_each_command_succeeds(api: RestApi, command: str) -> None:
    token = api.user("ann", *RIGHTS)["Authorization"].removeprefix("Bearer ")
    words = shlex.split(command.replace("$TOKEN", token))
    headers = dict(word.split(": ", 1) for option, word in pairwise(words) if option == "-H")
    options = dict(pairwise(words))
    body = RUN_FILE if options.get("--data-binary") == "@run.toml" else options.get("-d", "").encode()
    parts = urlsplit(words[-1].removeprefix("$SERVER"))
    path = f"{parts.path.removeprefix('/rlrun/v1')}{f'?{parts.query}' if parts.query else ''}"
    answer = await api.client.request(options.get("-X", "GET"), path, headers=headers, content=body)
    assert answer.status_code in (200, 201), answer.text


@pytest.mark.parametrize("command", INFERENCE)
async def test_each_request_to_an_adapter_succeeds(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    async with (
        CompletionEngine().serving(monkeypatch) as engine,
        serving_inference_api(lambda *_: engine.url) as api,
    ):
        api.add(adapter("deployed"))
        token = api.user("ann", "team")["Authorization"].removeprefix("Bearer ")
        words = shlex.split(command.replace("$TOKEN", token).replace("ADAPTER", "deployed"))
        headers = dict(word.split(": ", 1) for option, word in pairwise(words) if option == "-H")
        options = dict(pairwise(words))
        path = words[-1].removeprefix("$SERVER/v1")
        answer = await api.client.request(
            options.get("-X", "GET"), path, headers=headers, content=options.get("-d", "").encode()
        )
        assert answer.status_code == 200, answer.text
        assert "deployed" in answer.text or answer.text.endswith("data: [DONE]\n\n")


def test_each_route_that_is_named_exists() -> None:
    named = re.findall(r"`(/rlrun/v1[^`]*)`", GUIDE)
    assert named
    paths = {"/rlrun/v1", "/rlrun/v1/openapi.json", "/rlrun/v1/runs"}
    assert set(named) <= paths
