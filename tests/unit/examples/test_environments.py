"""Example environments, loaded like in a worker and rolled out with a scripted policy."""

import asyncio
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.protocol.environment import EnvironmentConfig, GroupRequest, GroupResult
from rlrun_environment.package_installer import install, installed_version
from rlrun_environment.worker.__main__ import runner_for
from rlrun_environment.worker.loading import load

ENVIRONMENTS = Path(__file__).resolve().parents[3] / "examples" / "environments"
Policy = Callable[[int, list[dict[str, Any]]], Any]
"""Function of the number of the rollout (0, 1, ...) and its messages; returns a text or an assistant message."""


class Table:
    """A gateway whose answers a `policy` makes."""

    def __init__(self) -> None:
        self.base_url = ""
        self.policy: Policy = lambda rollout, messages: ""
        self.numbers: dict[str, int] = {}
        self.requests: list[dict[str, Any]] = []

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        rollout = request.match_info.get("rollout") or request.headers["X-Rollout-Id"]
        said = self.policy(self.numbers.setdefault(rollout, len(self.numbers)), body["messages"])
        message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return web.json_response({**answer, "usage": usage})

    async def roll_out(self, folder: str, policy: Policy, rollouts: int, args: dict[str, Any], **more: Any) -> Any:
        """The group's result and the example's row."""
        self.policy, self.numbers = policy, {}
        path = ENVIRONMENTS / folder
        settings = EnvironmentConfig(id=f"rlrun/{folder.replace('_', '-')}", args=args)
        loaded = load(settings, path)
        runner = runner_for(loaded, path)
        fields = {"group_id": "g", "example_index": 0, "base_url": f"{self.base_url}/groups/g/v1", "model": "m"}
        request = GroupRequest.model_validate({**fields, "rollouts": rollouts, "deadline_seconds": 20.0, **more})
        result = await runner.run(request)
        await runner.close()
        rows = loaded.eval if request.split == "eval" else loaded.train
        return result, dict(rows[request.example_index])


@pytest.fixture
async def table() -> AsyncIterator[Table]:
    path, state, app = list(sys.path), Table(), web.Application()
    app.router.add_post("/groups/{group}/v1/chat/completions", state.handle)
    app.router.add_post("/groups/{group}/rollouts/{rollout}/v1/chat/completions", state.handle)
    server = TestServer(app)
    await server.start_server()
    state.base_url = f"http://127.0.0.1:{server.port}"
    yield state
    await server.close()
    sys.path[:] = path
    for folder in ENVIRONMENTS.iterdir():
        if folder.name != "reverse_text":
            sys.modules.pop(folder.name, None)


def rewards(result: GroupResult) -> list[float]:
    assert [r.error for r in result.rollouts] == [None] * len(result.rollouts)
    return [r.reward for r in result.rollouts]


def said(messages: list[dict[str, Any]]) -> list[str]:
    return [m["content"] for m in messages if m["role"] == "user"]


async def test_alphabet_sort_asks_again_with_more_names(table):
    def policy(rollout: int, messages: list[dict[str, Any]]) -> str:
        names = " ".join(said(messages)).split()
        right = " ".join(sorted(names))
        first = len(messages) == 1
        return [right, right if first else " ".join(names), "", right + " more"][rollout]

    result, row = await table.roll_out("alphabet_sort", policy, 4, {"turns": 2, "min_names": 3, "max_names": 3})
    by_number = sorted(result.rollouts, key=lambda r: table.numbers[r.rollout_id])
    right, unsorted, silent, longer = by_number
    assert right.reward == 1.0
    assert right.metrics["all_sorted"] == 1.0
    assert right.metrics["num_turns"] == 2.0
    assert 0.5 <= unsorted.reward < 1.0
    assert silent.reward == 0.0
    assert longer.reward == pytest.approx((3 / 4 + 6 / 7) / 2)
    assert right.completion[1] == {"role": "user", "content": " ".join(row["info"]["turns"][1])}
    held_out, _ = await table.roll_out("alphabet_sort", policy, 1, {}, split="eval")
    assert rewards(held_out) == [1.0]
    shown = {name for m in table.requests for name in " ".join(said(m["messages"])).split()}
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz") for name in shown)


async def test_number_guess_gives_hints_until_the_number_is_found(table):
    def policy(rollout: int, messages: list[dict[str, Any]]) -> str:
        low, high = 1, 26
        for guess, told in zip(messages[1::2], messages[2::2], strict=True):
            number = int(guess["content"].split()[-1])
            low, high = (number + 1, high) if told["content"] == "higher" else (low, number - 1)
        return f"maybe {(low + high) // 2}"

    def always(rollout: int, messages: list[dict[str, Any]]) -> str:
        return ["1", "...", "26"][rollout]

    found, row = await table.roll_out("number_guess", policy, 1, {"max_turns": 6}, example_index=10)
    number = row["info"]["number"]
    (searching,) = found.rollouts
    turns = searching.metrics["guesses"]
    assert searching.reward == pytest.approx(1.0 - 0.5 * (turns - 1) / 5)
    assert searching.stop_condition == "found"
    stubborn, _ = await table.roll_out("number_guess", always, 3, {"max_turns": 3}, example_index=10)
    by_number = sorted(stubborn.rollouts, key=lambda r: table.numbers[r.rollout_id])
    assert [r.metrics["guesses"] for r in by_number] == [3.0, 3.0, 3.0]
    assert by_number[0].reward == pytest.approx(0.25 * (1 - (number - 1) / 26))
    assert by_number[1].reward == 0.0
    assert by_number[1].completion[1]["content"] == "guess"
    assert by_number[0].completion[1]["content"] == "higher"
    assert by_number[2].completion[1]["content"] == "lower"


async def test_number_guess_in_letters(table):
    result, row = await table.roll_out("number_guess", lambda n, m: "c", 1, {"letters": True}, example_index=2)
    assert (row["answer"], row["info"]["number"]) == ("c", 3)
    assert rewards(result) == [1.0]
    with pytest.raises(Exception, match="limit 27"):
        await table.roll_out("number_guess", lambda n, m: "c", 1, {"letters": True, "limit": 27})


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


async def test_calculator_calls_tools_and_reads_the_answer(table):
    def policy(rollout: int, messages: list[dict[str, Any]]) -> Any:
        results = [m["content"] for m in messages if m["role"] == "tool"]
        a, op, b, _, c = (
            messages[1]["content"].removeprefix("What is ").rstrip("?").replace("(", "").replace(")", "").split()
        )
        steps = [("multiply", a, b), ("add", None, c)] if op == "*" else [("add", a, b), ("multiply", None, c)]
        if rollout == 1:
            return "about 12"
        if rollout == 2 and not results:
            return call("divide", a=1, b=2)
        done = len(results) - (1 if rollout == 2 else 0)
        if done < 2:
            name, left, right = steps[done]
            return call(name, a=int(left or results[-1]), b=int(right))
        return f"It is {int(results[-1]):,}."

    result, row = await table.roll_out("calculator", policy, 3, {"num_examples": 20}, example_index=3)
    by_number = sorted(result.rollouts, key=lambda r: table.numbers[r.rollout_id])
    assert rewards(result).count(1.0) == 2
    assert [r.reward for r in by_number] == [1.0, 0.0, 1.0]
    assert by_number[0].metrics["total_tool_calls"] == 2.0
    assert [by_number[0].metrics["add_calls"], by_number[0].metrics["multiply_calls"]] == [1.0, 1.0]
    # A tool that does not exist is an answer to the policy, not an end of the rollout.
    assert by_number[2].metrics["total_tool_calls"] == 3.0
    assert [tool["function"]["name"] for tool in table.requests[0]["tools"]] == ["add", "multiply"]
    assert str(row["answer"]) in by_number[0].completion[-1]["content"].replace(",", "")


async def test_distinct_words_pays_for_what_the_siblings_did_not_write(table):
    def policy(rollout: int, messages: list[dict[str, Any]]) -> str:
        letter = messages[0]["content"]
        return [f"{letter}ano", f"{letter}ano", f"{letter}iru", "9", f"{letter}{'o' * 20}"][rollout]

    result, _ = await table.roll_out("distinct_words", policy, 5, {})
    by_number = sorted(result.rollouts, key=lambda r: table.numbers[r.rollout_id])
    assert [r.reward for r in by_number] == [0.5, 0.5, 1.0, 0.0, 0.0]
    assert [r.metrics["fits"] for r in by_number] == [1.0, 1.0, 1.0, 0.0, 0.0]


async def test_word_problems_pay_for_the_number_in_the_last_line(table):
    def policy(rollout: int, messages: list[dict[str, Any]]) -> str:
        problem = messages[-1]["content"]
        right = solve(problem)
        return [f"So.\n#### {right:,}", f"#### {right}\n#### {right + 1}", f"It is {right}."][rollout]

    for index in range(20):
        result, row = await table.roll_out("word_problems", policy, 3, {"steps": 6}, example_index=index)
        by_number = sorted(result.rollouts, key=lambda r: table.numbers[r.rollout_id])
        assert [r.reward for r in by_number] == [1.0, 0.0, 0.0], row["question"]
        assert [r.metrics["has_answer"] for r in by_number] == [1.0, 1.0, 0.0]
    held_out, row = await table.roll_out("word_problems", policy, 1, {}, split="eval")
    assert rewards(held_out) == [1.0]


def solve(problem: str) -> int:
    """Return the answer of a made word problem, read from its text."""
    first, *rest = re.split(r"(?<=\.) ", problem)
    number = int(re.findall(r"\d+", first)[0])
    for sentence in rest[:-1]:
        values = [int(value) for value in re.findall(r"\d+", sentence)]
        if "packs" in sentence:
            number += values[0] * values[1]
        elif "gives" in sentence:
            number -= values[0]
        elif "times as many" in sentence:
            number += values[0] * number
        else:
            assert number % values[0] == 0
            number //= values[0]
    return number


async def test_word_problems_read_rows_in_the_form_of_gsm8k(table, monkeypatch):
    monkeypatch.syspath_prepend(str(ENVIRONMENTS / "word_problems"))
    import word_problems
    from datasets import Dataset

    asked = []

    def load_dataset(name: str, part: str, split: str) -> Dataset:
        asked.append((name, part, split))
        return Dataset.from_list([{"question": "2 * 617?", "answer": "<<2*617=1234>>\n#### 1,234"}])

    monkeypatch.setattr(word_problems, "load_dataset", load_dataset)
    args = {"dataset": "openai/gsm8k"}
    result, row = await table.roll_out("word_problems", lambda n, m: ["#### $1,234.", "#### 617"][n], 2, args)
    assert row["answer"] == "1234"
    assert sorted(rewards(result)) == [0.0, 1.0]
    assert asked == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]


async def test_plain_script_needs_no_verifiers(table):
    def policy(rollout: int, messages: list[dict[str, Any]]) -> str:
        words = messages[0]["content"].split()
        return " ".join([words[::-1], words, []][rollout])

    result, row = await table.roll_out(
        "plain_script", policy, 3, {"words": 4}, sampling={"temperature": 0.7, "max_tokens": 16}
    )
    by_number = sorted(result.rollouts, key=lambda r: table.numbers[r.rollout_id])
    assert [by_number[0].reward, by_number[2].reward] == [1.0, 0.0]
    assert by_number[1].reward < 1.0
    assert [r.metrics["exact"] for r in by_number] == [1.0, 0.0, 0.0]
    assert by_number[0].completion == [{"role": "assistant", "content": row["answer"]}]
    assert table.requests[0]["max_tokens"] == 16


async def test_slow_api_waits_for_all_rollouts_at_once_and_scores_like_reverse_text(table, monkeypatch):
    def policy(rollout: int, messages: list[dict[str, Any]]) -> str:
        text = messages[0]["content"]
        return text if rollout == 0 else text[::-1]

    monkeypatch.syspath_prepend(str(ENVIRONMENTS / "slow_api"))
    import slow_api

    called, all_called = [], asyncio.Event()

    async def answer_when_all_have_called(seconds: float) -> None:
        called.append(seconds)
        if len(called) == 8:
            all_called.set()
        await all_called.wait()

    with monkeypatch.context() as patched:
        patched.setattr(slow_api, "asyncio", SimpleNamespace(sleep=answer_when_all_have_called))
        result, _ = await table.roll_out("slow_api", policy, 8, {"mean_seconds": 0.2, "num_examples": 40})
    by_number = sorted(result.rollouts, key=lambda r: table.numbers[r.rollout_id])
    assert [r.reward for r in by_number[1:]] == [1.0] * 7
    assert by_number[0].reward < 0.7
    waited = [r.metrics["waited_seconds"] for r in result.rollouts]
    assert len(set(waited)) == 8
    assert sorted(waited) == sorted(called)
    without, _ = await table.roll_out("slow_api", policy, 2, {"mean_seconds": 60.0, "num_examples": 40}, score=False)
    assert rewards(without) == [0.0, 0.0]


async def test_slow_api_asks_again_after_each_call(table, monkeypatch):
    monkeypatch.syspath_prepend(str(ENVIRONMENTS / "slow_api"))
    import slow_api

    calls = []

    async def answer(seconds: float) -> None:
        calls.append(seconds)

    def policy(rollout: int, messages: list[dict[str, Any]]) -> str:
        text = messages[-1]["content"]
        return text[::-1] if len(messages) > 2 else text

    with monkeypatch.context() as patched:
        patched.setattr(slow_api, "asyncio", SimpleNamespace(sleep=answer))
        result, _ = await table.roll_out("slow_api", policy, 2, {"turns": 3, "num_examples": 40})
    assert [r.reward for r in result.rollouts] == [1.0, 1.0]
    assert len(calls) == 6
    assert sum(r.metrics["waited_seconds"] for r in result.rollouts) == pytest.approx(sum(calls))


def test_slow_api_waits_the_mean_time_and_the_same_with_the_same_seed(monkeypatch):
    monkeypatch.syspath_prepend(str(ENVIRONMENTS / "slow_api"))
    from slow_api import OutsideCall

    call = OutsideCall(1.0, 0.5, seed=3)
    drawn = [[call.seconds(f"text {i}") for _ in range(4)] for i in range(2000)]
    every = [seconds for row in drawn for seconds in row]
    assert sum(every) / len(every) == pytest.approx(1.0, abs=0.03)
    assert min(every) < 0.3
    assert max(every) > 2.5
    again = OutsideCall(1.0, 0.5, seed=3)
    assert [again.seconds("text 7") for _ in range(4)] == drawn[7]
    assert OutsideCall(1.0, 0.5, seed=4).seconds("text 7") != drawn[7][0]
    assert OutsideCall(0.25, 0.0, seed=0).seconds("x") == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("folder", "args", "words"),
    [
        ("alphabet_sort", {"min_names": 3, "max_names": 2}, "min_names 3 and max_names 2"),
        ("number_guess", {"max_turns": 0}, "max_turns 0"),
        ("calculator", {"largest": 5}, "largest 5"),
        ("plain_script", {"words": 1}, "words 1"),
        ("slow_api", {"mean_seconds": 0.0}, "mean_seconds 0.0"),
        ("slow_api", {"turns": 0}, "turns 0"),
        ("word_problems", {"steps": 1}, "steps 1"),
        ("distinct_words", {"letters": 3}, "unexpected keyword argument 'letters'"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(table, folder, args, words):
    with pytest.raises(Exception, match=words):
        await table.roll_out(folder, lambda n, m: "", 1, args)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "modules"),
    [
        ("slow_api", ["reverse_text.py", "reverse_text_data.py", "slow_api.py"]),
        ("plain_script", ["plain_script.py"]),
    ],
)
async def test_example_wheels_contain_their_modules_and_load_when_installed(
    table, folder, modules, tmp_path, monkeypatch
):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    await asyncio.to_thread(subprocess.run, [*command, str(ENVIRONMENTS / folder)], capture_output=True, check=True)
    wheel = next(tmp_path.glob("*.whl"))
    assert sorted(n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in n) == modules
    place, name = tmp_path / "installed", folder.replace("_", "-")
    await install([wheel], place)
    assert installed_version(place, name) == "0.1.0"
    for module in modules:
        monkeypatch.delitem(sys.modules, module.removesuffix(".py"), raising=False)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not Path(p).is_relative_to(ENVIRONMENTS)])
    loaded = load(EnvironmentConfig(id=f"rlrun/{name}", args={"num_examples": 12, "num_eval_examples": 4}), place)
    assert (loaded.train_examples, loaded.eval_examples) == (12, 4)
    assert Path(sys.modules[folder].__file__).parent == place
