"""`rlrun env check --base-url`: environments run against a small OpenAI-compatible endpoint."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chat_endpoint import Endpoint, serving
from tests.support.command_line import Answer, Rlrun
from tests.support.source_tree import PYTHONPATH

PLAIN = """
from openai import OpenAI

class Game:
    dataset = [{"prompt": f"question {n}", "answer": "yes"} for n in range(40)]

    def rollout(self, example, *, base_url, api_key, model, sampling):
        client = OpenAI(base_url=base_url, api_key=api_key)
        messages = [{"role": "user", "content": example["prompt"]}]
        reply = client.chat.completions.create(model=model, messages=messages, **sampling)
        return REWARD

def load_environment(wanted="yes"):
    Game.wanted = wanted
    return Game()
"""
LIGHT = """
import json, urllib.request

class Game:
    dataset = [{"prompt": f"question {n}", "answer": "yes"} for n in range(40)]

    def rollout(self, example, *, base_url, api_key, model, sampling):
        body = {"model": model, "messages": [{"role": "user", "content": example["prompt"]}]}
        headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked) as answer:
            said = json.load(answer)["choices"][0]["message"]["content"]
        return REWARD

def load_environment(wanted="yes"):
    Game.wanted = wanted
    return Game()
"""
"""The same without the client of OpenAI, which takes longer to import than all else that such a test does."""
RIGHT = "float(reply.choices[0].message.content == self.wanted)"
pytestmark = pytest.mark.slow


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as server:
        yield server


@pytest.fixture
def package(rlrun: Rlrun, tmp_path: Path) -> Path:
    folder = tmp_path / "my-env"
    assert rlrun("env", "init", "my-env", "--owner", "me", "--dir", folder).code == 0
    return folder


def check(rlrun: Rlrun, package: Path, endpoint: Endpoint, *words: str, code: str = "", **env: str) -> Answer:
    if code:
        (package / "my_env.py").write_text(code)
    given = ["--base-url", endpoint.url, "--model", "m", "--examples", "4", "--rollouts", "4"]
    return rlrun("env", "check", package, *given, *words, env={"PYTHONPATH": PYTHONPATH, **env})


def test_an_environment_without_verifiers_is_run(rlrun: Rlrun, package: Path, endpoint: Endpoint) -> None:
    answer = check(rlrun, package, endpoint, "--temperature", "0.5", code=PLAIN.replace("REWARD", RIGHT))
    assert answer.code == 0, answer.out + answer.err
    assert "mean reward 0.5 over 16 rollouts, from 0 to 1" in " ".join(answer.out.split())
    assert len(endpoint.asked) == 16
    authorization, body = endpoint.asked[0]
    assert authorization == "Bearer none"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.5, 512)
    prompts = {body["messages"][0]["content"] for _, body in endpoint.asked}
    assert prompts == {f"question {n}" for n in (0, 10, 20, 30)}, "examples from all of the dataset"


def test_an_environment_of_verifiers_is_run(rlrun: Rlrun, package: Path, endpoint: Endpoint) -> None:
    endpoint.replies = itertools.cycle(["1", "21"])
    answer = check(rlrun, package, endpoint, "--key-variable", "MY_KEY", MY_KEY="secret-key")
    assert "over 16 rollouts" in answer.out, answer.out + answer.err
    assert {authorization for authorization, _ in endpoint.asked} == {"Bearer secret-key"}
    assert "secret-key" not in answer.out + answer.err


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("0.0", "wrong 0%: the model never gets a reward"),
        ("0.5", "wrong no spread"),
        ("1 / 0", "16 of 16 rollouts failed, most often: ZeroDivisionError"),
        ("None", "the reward is None, not a finite number"),
    ],
)
def test_what_is_wrong_is_said(rlrun: Rlrun, package: Path, endpoint: Endpoint, reward: str, said: str) -> None:
    answer = check(rlrun, package, endpoint, code=LIGHT.replace("REWARD", reward))
    assert answer.code == 1
    assert said in " ".join(answer.out.split())


def test_the_environment_comes_from_the_wheel(
    rlrun: Rlrun, package: Path, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_env.py").write_text("raise LookupError('of the current folder')\n")
    monkeypatch.chdir(tmp_path)
    answer = check(rlrun, package, endpoint, code=LIGHT.replace("REWARD", 'float(said == "1")'))
    assert "over 16 rollouts" in " ".join(answer.out.split()), answer.out + answer.err


def test_rollouts_get_copies_of_their_example_as_in_runs(rlrun: Rlrun, package: Path, endpoint: Endpoint) -> None:
    shared = LIGHT.replace('"answer": "yes"', '"answer": "yes", "seen": []')
    code = shared.replace("REWARD", 'float(example["seen"].append(1) or len(example["seen"]) == 1)')
    assert "mean reward 1 over 16 rollouts" in " ".join(check(rlrun, package, endpoint, code=code).out.split())
    lock = LIGHT.replace("import json", "import json, threading").replace(
        '"answer"', '"lock": threading.Lock(), "answer"'
    )
    answer = check(rlrun, package, endpoint, code=lock.replace("REWARD", "1.0"))
    assert "16 of 16 rollouts failed, most often: TypeError: cannot pickle" in " ".join(answer.out.split())


def test_arguments_reach_the_environment(rlrun: Rlrun, package: Path, endpoint: Endpoint) -> None:
    answer = check(
        rlrun,
        package,
        endpoint,
        "--args",
        '{"wanted": "never"}',
        code=LIGHT.replace("REWARD", "float(said == self.wanted)"),
    )
    assert "0%" in answer.out


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nowhere\ndef load_environment(): ...\n", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def load_environment(): return 5\n", "load_environment returned int"),
        ("import sys\ndef load_environment(): sys.exit('no key')\n", "SystemExit: no key"),
        ("import os\ndef load_environment(): os._exit(3)\n", "the environment cannot be run"),
    ],
)
def test_an_environment_that_does_not_load_is_an_error(
    rlrun: Rlrun, package: Path, endpoint: Endpoint, code: str, said: str
) -> None:
    answer = check(rlrun, package, endpoint, code=code)
    assert answer.code == 1
    assert said in " ".join(answer.err.split())
    assert endpoint.asked == []


def test_an_environment_that_hangs_is_ended(rlrun: Rlrun, package: Path, endpoint: Endpoint) -> None:
    code = "import time\ndef load_environment(): time.sleep(600)\n"
    answer = check(rlrun, package, endpoint, "--timeout", "1", code=code)
    assert answer.code == 1
    assert "0 of up to 16 rollouts finished within 1 s" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "m"], "--model needs --base-url"),
        (["--base-url", "http://x/v1"], "--base-url needs --model"),
        (["--base-url", "x", "--model", "m"], "is not a URL"),
        (["--base-url", "http://x/v1", "--model", "m", "--args", "["], "--args is not JSON"),
        (["--base-url", "http://x/v1", "--model", "m", "--args", "[1]"], "not a JSON object"),
        (["--base-url", "http://x/v1", "--model", "m", "--key-variable", "UNSET_KEY"], "UNSET_KEY is not set"),
        (["--base-url", "http://x/v1", "--model", "m", "--key-variable", "MY_KEY"], "without TLS"),
    ],
)
def test_options_that_make_no_sense_are_refused(rlrun: Rlrun, package: Path, words: list[str], said: str) -> None:
    answer = rlrun("env", "check", package, *words, env={"MY_KEY": "x", "UNSET_KEY": None})
    assert answer.code == 2
    assert said in " ".join(answer.err.split())
