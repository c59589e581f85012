"""The whole server: package from a canned orchestrator, real worker processes, real verifiers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.protocol.access import bearer
from rlrun.protocol.environment import Demonstration, EnvironmentConfig, EnvironmentInfo, GroupRequest, GroupResult
from rlrun_environment import worker_pool
from rlrun_environment.server import EnvironmentServer
from rlrun_environment.settings import EnvironmentProcessSettings, load_settings

from tests.support.source_tree import PYTHONPATH

pytestmark = pytest.mark.slow

ENVIRONMENT = """
def act(completion, answer):
    text = completion[-1]["content"]
    if text == "die":
        os._exit(3)
    if text == "hang":
        time.sleep(60)
    return float(text == answer)

def load_environment(count=2):
    print("loaded in", os.getpid())
    return vf.SingleTurnEnv(dataset=rows(*["abc"] * count), rubric=vf.Rubric(funcs=[act]))
"""

PLAIN = """
import asyncio, json, os, time, urllib.request

def ask(base_url, model, prompt):
    body = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    url, kind = base_url + "/chat/completions", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

class Words:
    dataset = [{"prompt": "abc", "answer": "cba"}]

    async def rollout(self, example, *, base_url, api_key, model, sampling):
        text = await asyncio.to_thread(ask, base_url, model, example["prompt"])
        if text == "die":
            os._exit(3)
        if text == "hang":
            time.sleep(60)
        return float(text == example["answer"])

def load_environment():
    return Words()
"""
"""Environment for what the server does with any worker: without verifiers a worker starts in a tenth of the time."""


class Client:
    """The server's routes as calls."""

    def __init__(self, server: EnvironmentServer, base: str, http: aiohttp.ClientSession) -> None:
        self.server, self.base, self.http = server, base, http

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(self.base + path) as response:
            return response.status, await response.text()

    async def group(self, request: GroupRequest) -> tuple[int, Any]:
        async with self.http.post(f"{self.base}/groups", json=request.to_json_dict()) as response:
            body = await response.read()
            return response.status, GroupResult.model_validate_json(body) if response.status == 200 else body.decode()

    async def demonstration(self, index: int) -> tuple[int, str]:
        async with self.http.post(f"{self.base}/demonstrations", json={"exampleIndex": index}) as response:
            return response.status, await response.text()

    async def until(self, condition: Callable[[EnvironmentInfo], bool], seconds: float = 240) -> EnvironmentInfo:
        ends = time.monotonic() + seconds
        while True:
            info = EnvironmentInfo.model_validate_json((await self.get("/info"))[1])
            if condition(info) or time.monotonic() > ends:
                return info
            await asyncio.sleep(0.1)


@pytest.fixture
async def serve(write_environment, tmp_path: Path, monkeypatch) -> AsyncIterator[Callable[..., Any]]:
    cleanups = []
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)

    async def start(code: str = ENVIRONMENT, workers: int = 1, verifiers: bool = True, **surroundings: Any) -> Client:
        written: EnvironmentConfig = write_environment(code, **({} if verifiers else {"preamble": ""}))
        # Without packages URL nothing is fetched: the module lies in the folder already.
        settings = written.model_copy(update={"workers": workers, "name": "words"})
        server = EnvironmentServer(settings, EnvironmentProcessSettings(dir=tmp_path, **surroundings))
        web = TestServer(server.app())
        await web.start_server()
        http = aiohttp.ClientSession()
        cleanups.extend([http.close, web.close, server.pool.close])
        await server.prepare()
        return Client(server, f"http://127.0.0.1:{web.port}", http)

    yield start
    for cleanup in cleanups:
        await cleanup()


async def test_server_becomes_ready_and_serves_groups_and_demonstrations(serve, make_group):
    client = await serve()
    status, text = await client.get("/readyz")
    assert (status, "EnvironmentStarting" in text) == (503, True)
    assert (await client.get("/healthz"))[0] == 200
    assert (await client.group(make_group()))[0] == 503
    assert (await client.demonstration(0))[0] == 503
    info = await client.until(lambda i: i.ready)
    assert (info.name, info.train_examples, info.eval_examples, info.problem) == ("words", 2, 2, None)
    assert (await client.get("/readyz"))[0] == 200
    status, result = await client.group(make_group(rollouts=3))
    assert [r.reward for r in result.rollouts] == [1.0, 1.0, 1.0]
    status, text = await client.group(make_group(example_index=9))
    assert (status, "ExampleNotFound" in text) == (404, True)
    status, text = await client.demonstration(1)
    assert status == 200
    assert Demonstration.model_validate_json(text).completion == [{"role": "assistant", "content": "cba"}]
    status, text = await client.demonstration(9)
    assert (status, "ExampleNotFound" in text) == (404, True)
    async with client.http.post(f"{client.base}/groups", json={"groupId": "g"}) as response:
        assert response.status == 422
        assert "exampleIndex" in await response.text()
    metrics = (await client.get("/metrics"))[1]
    assert 'rlrun_environment_rollouts_total{reason="ok"} 3.0' in metrics


async def test_groups_need_the_token_and_user_code_does_not_have_it(serve, make_group, monkeypatch):
    monkeypatch.setenv("RLRUN_TOKEN", "secret")
    code = PLAIN.replace('float(text == example["answer"])', 'float("RLRUN_TOKEN" in os.environ)')
    client = await serve(code, verifiers=False, token="secret")
    assert (await client.get("/healthz"))[0] == 200
    assert (await client.get("/info"))[0] == 401
    assert (await client.group(make_group()))[0] == 401
    assert (await client.demonstration(0))[0] == 401
    client.http.headers.update(bearer("secret"))
    assert (await client.until(lambda i: i.ready)).ready
    status, result = await client.group(make_group(rollouts=1))
    assert (status, result.rollouts[0].reward) == (200, 0.0)


def test_the_token_comes_from_its_own_variable():
    variables = {"RLRUN_ENVIRONMENT": '{"id": "o/e"}', "RLRUN_TOKEN": "secret"}
    settings = load_settings(variables)[1]
    assert settings.token == "secret"
    assert "secret" not in repr(settings)
    assert load_settings({**variables, "RLRUN_TOKEN": ""})[1].token is None


async def test_a_dead_worker_costs_its_groups_and_comes_back(serve, make_group, upstream):
    client = await serve(PLAIN, verifiers=False)
    await client.until(lambda i: i.ready)
    upstream.reply = lambda n, body: "die"
    _, result = await client.group(make_group(rollouts=2))
    assert [r.error.reason for r in result.rollouts] == ["EnvironmentWorkerDied"] * 2
    assert "exited with code 3" in result.rollouts[0].error.message
    assert (await client.group(make_group()))[0] == 503
    info = await client.until(lambda i: i.ready)
    assert info.ready
    upstream.reply = lambda n, body: "cba"
    _, result = await client.group(make_group(rollouts=1))
    assert result.rollouts[0].reward == 1.0
    assert client.server.pool.workers[0].restarts == 1


async def test_a_worker_that_blocks_is_killed(serve, make_group, upstream):
    client = await serve(PLAIN, verifiers=False, hang_grace=0.5)
    await client.until(lambda i: i.ready)
    upstream.reply = lambda n, body: "hang"
    _, result = await client.group(make_group(rollouts=1, deadline_seconds=5.0))
    assert [r.error.reason for r in result.rollouts] == ["EnvironmentTimeout"]
    assert (await client.until(lambda i: i.ready)).ready
    assert client.server.pool.workers[0].restarts == 1


async def test_load_failures_are_shown_and_tried_again(serve, tmp_path, make_group):
    flag = tmp_path / "mended"
    missing = f"    if not os.path.exists({str(flag)!r}):\n        raise ValueError('not mended')\n"
    code = PLAIN.replace("load_environment():\n", f"load_environment():\n{missing}")
    client = await serve(code, workers=2, verifiers=False)
    info = await client.until(lambda i: i.problem is not None)
    assert (info.ready, info.problem.reason) == (False, "EnvironmentLoadFailed")
    assert "ValueError: not mended" in info.problem.message
    status, text = await client.group(make_group())
    assert (status, "not mended" in text) == (503, True)
    assert client.server.pool.workers[1].process is None
    flag.touch()
    info = await client.until(lambda i: i.ready)
    assert (info.ready, info.problem) == (True, None)
    await client.until(lambda _: all(worker.ready for worker in client.server.pool.workers))
    assert all(worker.ready for worker in client.server.pool.workers)


async def test_code_that_asks_for_input_gets_none(serve):
    client = await serve(
        PLAIN.replace("load_environment():\n", "load_environment():\n    input('Key: ')\n"), verifiers=False
    )
    info = await client.until(lambda i: i.ready or i.problem is not None)
    assert "EOFError" in info.problem.message


async def test_a_process_that_ends_while_loading(serve):
    client = await serve("import os; os._exit(9)", verifiers=False)
    info = await client.until(lambda i: i.problem is not None)
    assert "exited during the phase load: its process exited with code 9" in info.problem.message


PLAYED = """
import os, time
from pathlib import Path

calls = Path({calls!r})

class Words:
    dataset = [{{"prompt": "abc"}}]

    async def rollout(self, example, *, base_url, api_key, model, sampling):
        calls.write_text(calls.read_text() + "r" if calls.exists() else "r")
        {rollout}

    async def score_group(self, example, rollouts):
        calls.write_text(calls.read_text() + "s")
        return [1.0] * len(rollouts)

def load_environment():
    return Words()
"""


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        (
            "raise LookupError('no board')",
            "example 0 of its train split fails. In the phase rollout: Look",
        ),
        ("os._exit(9)", "The worker exited during the phase rollout: its process exited with code 9."),
        ("time.sleep(600)", "it did not respond within 2 s in the phase rollout of example 0"),
    ],
)
async def test_an_example_that_fails_before_its_first_request_keeps_the_environment_from_being_ready(
    serve, tmp_path, monkeypatch, rollout, words
):
    monkeypatch.setattr(worker_pool, "PREPARE_SECONDS", 2.0)
    code = PLAYED.format(calls=str(tmp_path / "calls"), rollout=rollout)
    client = await serve(code, verifiers=False, load_deadline=600.0)
    info = await client.until(lambda i: i.ready or i.problem is not None)
    assert (info.ready, info.problem.reason) == (False, "EnvironmentLoadFailed")
    assert words in info.problem.message


async def test_a_play_ends_with_its_first_request_and_is_not_repeated(serve, tmp_path, make_group, upstream):
    calls = tmp_path / "calls"
    ask = "import urllib.request as u; u.urlopen(base_url + '/models'); raise LookupError('of the answer')"
    client = await serve(PLAYED.format(calls=str(calls), rollout=ask), verifiers=False)
    info = await client.until(lambda i: i.ready or i.problem is not None)
    assert (info.ready, info.problem) == (True, None)
    # What depends on the policy's answer does not count, and nothing is scored.
    assert calls.read_text() == "r"
    assert not upstream.requests
    client.server.pool.workers[0].process.kill()
    await client.until(lambda _: client.server.pool.workers[0].restarts == 1)
    assert (await client.until(lambda i: i.ready)).ready
    assert calls.read_text() == "r"


async def test_pauses_grow_while_an_environment_fails_slowly(serve, monkeypatch):
    monkeypatch.setattr(worker_pool, "HEALTHY_SECONDS", 0.0)
    client = await serve("raise LookupError('no board')", verifiers=False)
    (worker,) = client.server.pool.workers
    await client.until(lambda _: worker.backoff.failures > 1 or worker.restarts > 2)
    assert worker.backoff.failures > 1


async def test_loading_has_a_deadline(serve):
    client = await serve("import time; time.sleep(600)", verifiers=False, load_deadline=1.0)
    info = await client.until(lambda i: i.problem is not None)
    assert "did not finish within 1 s" in info.problem.message


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "RLRUN_ENVIRONMENT is not set"),
        ({"RLRUN_ENVIRONMENT": '{"id": "a/b/c"}'}, "not a valid EnvironmentConfig of this version: id: "),
        ({"RLRUN_ENVIRONMENT": '{"id": "a/b", "workers": 0}'}, "workers"),
        ({"RLRUN_ENVIRONMENT": '{"id": "a/b"}', "RLRUN_ENVIRONMENT_PORT": "x"}, "RLRUN_ENVIRONMENT_PORT: "),
    ],
)
def test_invalid_settings_are_named_in_the_error(variables, words):
    with pytest.raises(ValueError, match=words):
        load_settings(variables)


def test_settings_take_the_runs_entry_as_it_is():
    text = (
        '{"id": "o/my-env@0.2", "name": "n", "weight": 2.0, "args": {"camelCase": 1}, "packagesUrl": "http://g:8000"}'
    )
    settings, surroundings = load_settings({"RLRUN_ENVIRONMENT": text, "RLRUN_ENVIRONMENT_DIR": "/e"})
    assert (settings.owner, settings.package, settings.version) == ("o", "my-env", "0.2")
    assert settings.load_args == {"camelCase": 1}
    assert (settings.packages_url, str(surroundings.dir)) == ("http://g:8000", "/e")


async def test_closing_tears_the_environment_down(serve, tmp_path):
    code = f"""
    class Tidy(vf.SingleTurnEnv):
        @vf.teardown
        async def put_away(self):
            open({str(tmp_path / "tidied")!r}, "w").close()

    def load_environment():
        return Tidy(dataset=rows("abc"))
    """
    client = await serve(code)
    assert (await client.until(lambda i: i.ready)).ready
    await client.server.pool.close()
    assert (tmp_path / "tidied").exists()


NOISY = """
import os, subprocess, sys
from openai import AsyncOpenAI

CHILD = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

class Noisy:
    dataset = [{"prompt": "abc", "answer": "cba"}]

    async def rollout(self, example, *, base_url, api_key, model, sampling):
        for _ in range(64):
            sys.stdout.write("x" * 2**20)
        client = AsyncOpenAI(base_url=base_url, api_key=api_key)
        messages = [{"role": "user", "content": example["prompt"]}]
        reply = await client.chat.completions.create(model=model, messages=messages)
        text = reply.choices[0].message.content
        if text == "die":
            os._exit(5)
        return {"reward": float(text == example["answer"]), "metrics": {"child": CHILD.pid}}

def load_environment():
    return Noisy()
"""


async def test_a_plain_environment_that_prints_without_end_and_has_children(serve, make_group, upstream, capfd):
    client = await serve(NOISY, verifiers=False)
    info = await client.until(lambda i: i.ready)
    assert (info.train_examples, info.eval_examples) == (1, 1)
    _, result = await client.group(make_group(rollouts=4))
    assert [(r.reward, r.error) for r in result.rollouts] == [(1.0, None)] * 4
    assert (await client.demonstration(0))[0] == 200
    child = int(result.rollouts[0].metrics["child"])
    assert _alive(child)
    upstream.reply = lambda n, body: "die"
    _, result = await client.group(make_group(rollouts=2))
    assert [r.error.reason for r in result.rollouts] == ["EnvironmentWorkerDied"] * 2
    await client.until(lambda i: i.ready)
    assert not _alive(child)
    # 4 x 64 MiB were printed; what reached the log is what a person might read.
    assert len(capfd.readouterr().out) < 8 * 2**20
    metrics = (await client.get("/metrics"))[1]
    assert 'rlrun_environment_rollouts_total{reason="EnvironmentWorkerDied"} 2.0' in metrics


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
