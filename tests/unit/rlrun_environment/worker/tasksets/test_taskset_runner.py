"""Groups of episodes against the real verifiers.v1: rewards, agents, tools, and the ways in which users' code fails."""

import asyncio
import importlib.metadata
import json
import re
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import pytest
from rlrun.protocol.environment import DemonstrationRequest, GroupResult
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from rlrun_environment.worker import example_check
from rlrun_environment.worker.example_play import play_example
from rlrun_environment.worker.tasksets import taskset_runner
from rlrun_environment.worker.user_code.isolation import RolloutFailedError
from rlrun_environment.worker.user_code.load_error import LoadError

from tests.support.source_tree import ROOT
from tests.support.waiting import until

pytestmark = pytest.mark.slow  # The program of an agent is a process of its own.

REVERSE = """
class Data(vf.TaskData):
    answer: str

class ReverseTask(vf.Task[Data]):
    @vf.stop
    async def single_turn(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=0.5)
    async def match(self, trace: vf.Trace) -> float:
        return 1.0 if trace.last_reply == self.data.answer else 0.25

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))

class Reverse(vf.Taskset[ReverseTask, vf.TasksetConfig]):
    def load(self):
        return [
            ReverseTask(Data(idx=i, prompt=text, system_prompt="Reverse.", answer=text[::-1]), self.config.task)
            for i, text in enumerate(("abc", "def"))
        ]

__all__ = ["Reverse"]
"""
NULL = {"id": "null"}


def reasons(result: GroupResult) -> list[str | None]:
    return [one.error.reason if one.error else None for one in result.rollouts]


def tool_call(tool: str, **arguments: str) -> dict[str, object]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "t1", "type": "function", "function": function}],
    }


async def test_a_task_is_answered_scored_and_recorded_under_the_rollouts_id(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: "cba" if n % 2 else "zzz"
    result = await make_runner(REVERSE, harness=NULL).run(make_group(rollouts=2))
    assert reasons(result) == [None, None]
    assert sorted(one.reward for one in result.rollouts) == [0.125, 0.5]
    for one in result.rollouts:
        assert {name: (r.value, r.weight) for name, r in one.rewards.items()} == {"match": (one.reward * 2, 0.5)}
        assert one.metrics == {"match": one.reward * 2, "length": 3.0}
        assert one.completion[0]["content"] in ("cba", "zzz")
        assert one.stop_condition == "agent_completed"
        assert one.generation_ms is not None
        assert one.scoring_ms is not None
    assert sorted(upstream.rollouts) == sorted(one.rollout_id for one in result.rollouts)
    assert len({one.episode for one in result.rollouts}) == 2
    assert {one.agent for one in result.rollouts} == {"agent"}
    body = upstream.requests[0][1]
    assert (body["model"], body["temperature"]) == ("policy", 0.7)
    assert 32 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert [message["content"] for message in body["messages"]] == ["Reverse.", "abc"]
    assert [message["content"] for message in result.example.prompt] == ["Reverse.", "abc"]
    assert result.example.answer == "cba"
    assert [one.prompt for one in result.rollouts] == [None, None]


async def test_the_environment_of_the_guide_asks_and_scores(make_runner, make_group, upstream):
    guide = (ROOT / "docs" / "guides" / "environments.md").read_text()
    code = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[1]
    upstream.reply = lambda n, body: "1"
    result = await make_runner(code, harness=NULL).run(make_group(rollouts=1))
    assert [(one.reward, one.error) for one in result.rollouts] == [(1.0, None)]
    assert upstream.requests[0][1]["messages"][-1]["content"] == "0 + 1"


async def test_without_scores_all_rewards_are_zero(make_runner, make_group):
    result = await make_runner(REVERSE, harness=NULL).run(make_group(rollouts=1, score=False))
    assert [(one.reward, one.rewards) for one in result.rollouts] == [(0.0, {})]
    assert reasons(result) == [None]


async def test_an_empty_answer_is_scored_like_any_other(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: ""
    result = await make_runner(REVERSE, harness=NULL).run(make_group(rollouts=1))
    assert reasons(result) == [None]
    assert result.rollouts[0].reward == 0.125


async def test_an_example_beyond_the_end_is_refused(make_runner, make_group):
    with pytest.raises(ProblemError, match="has 2") as refusal:
        await make_runner(REVERSE, harness=NULL).run(make_group(example_index=2))
    assert refusal.value.status == 404


async def test_the_bash_harness_runs_commands_in_a_folder_of_its_rollout(make_runner, make_group, upstream):
    code = REVERSE.replace("trace.num_turns >= 1", "False")
    upstream.reply = lambda n, body: (
        tool_call("bash", command="echo abc > note && rev note && ls")
        if body["messages"][-1]["role"] == "user"
        else body["messages"][-1]["content"].split()[0]
    )
    result = await make_runner(code, harness={"id": "bash", "edit": False}).run(make_group(rollouts=2))
    assert reasons(result) == [None, None]
    assert [one.reward for one in result.rollouts] == [0.5, 0.5]
    assert [message["role"] for message in result.rollouts[0].completion] == ["assistant", "tool", "assistant"]
    assert all(one.completion[1]["content"].split() == ["cba", "note"] for one in result.rollouts)
    assert [tool["function"]["name"] for tool in upstream.requests[0][1]["tools"]] == ["bash"]
    assert len(set(upstream.rollouts)) == 2


TOOLS = """
FACTS = {"ada": "programs"}

class Facts(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "facts"

    @vf.tool
    def lookup(self, name: str) -> str:
        "Look up what a person is known for."
        return FACTS.get(name, "nothing")

class Config(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()

class LookupTask(vf.Task[vf.TaskData, vf.State, Config]):
    @classmethod
    def toolsets(cls, config):
        return [Facts(config.tools)]

    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float("programs" in trace.last_reply)

class LookupConfig(vf.TasksetConfig):
    task: Config = Config()

class Lookup(vf.Taskset[LookupTask, LookupConfig]):
    def load(self):
        return [LookupTask(vf.TaskData(idx=0, prompt="What is ada known for?"), self.config.task)]

__all__ = ["Lookup"]

if __name__ == "__main__":
    Facts.run()
"""


async def test_tools_of_the_package_are_served_and_called(make_runner, make_group, upstream):
    def reply(n, body):
        last = body["messages"][-1]
        return tool_call("facts_lookup", name="ada") if last["role"] == "user" else f"Known for {last['content']}"

    upstream.reply = reply
    result = await make_runner(TOOLS, harness=NULL).run(make_group(rollouts=1))
    assert reasons(result) == [None]
    assert result.rollouts[0].reward == 1.0
    assert result.rollouts[0].completion[1]["role"] == "tool"


TWO = """
class DuelConfig(vf.EnvConfig):
    asker: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    guesser: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    referee: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    broken: str = ""
    bonus: float = 0.0

class Duel(vf.Env[DuelConfig]):
    async def setup(self, agents):
        agents.referee.trainable = False

    async def run(self, task, agents):
        def seat(text):
            return vf.Task(vf.TaskData(idx=task.data.idx, prompt=None, system_prompt=text))

        if self.config.broken == "run":
            raise KeyError("no table")
        async with (
            agents.asker.interaction(seat("You ask.")) as asker,
            agents.guesser.interaction(seat("You guess.")) as guesser,
        ):
            question = await asker.turn("Ask.")
            if self.config.broken == "rules":
                asker.trace.record_reward("payoff", -1.0)
                return
            answer = await guesser.turn(question.last_reply)
            await asker.turn(answer.last_reply)
        verdict = await agents.referee.run(vf.Task(vf.TaskData(idx=0, prompt="Who won?")))
        asker.trace.record_reward("payoff", 1.0)
        guesser.trace.record_reward("payoff", -1.0)

    async def finalize(self, task, episode):
        if self.config.broken == "finalize":
            raise ValueError("no winner")
        best = max(trace.reward for trace in episode.traces)
        for trace in episode.traces:
            trace.record_reward("best", float(trace.reward == best), self.config.bonus)

class DuelTaskset(vf.Taskset[vf.Task[vf.TaskData], vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            yield vf.Task(vf.TaskData(idx=number, prompt=None), self.config.task)
            number += 1

__all__ = ["Duel", "DuelTaskset"]
"""


async def test_each_agent_of_an_episode_is_a_rollout_with_a_conversation_of_its_own(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: f"{body['messages'][0]['content']} {len(body['messages'])}"
    runner = make_runner(TWO, args={"bonus": 0.5})
    result = await runner.run(make_group(example_index=7, rollouts=2))
    assert reasons(result) == [None] * 4
    assert sorted((one.agent, one.reward) for one in result.rollouts) == [
        ("asker", 1.5), ("asker", 1.5), ("guesser", -1.0), ("guesser", -1.0),
    ]  # fmt: skip
    by_episode = {one.episode: set() for one in result.rollouts}
    requests = list(zip(upstream.rollouts, (body["messages"] for _, body in upstream.requests), strict=True))
    for one in result.rollouts:
        by_episode[one.episode].add(one.agent)
        asked = [messages for rollout, messages in requests if rollout == one.rollout_id]
        seat = "You ask." if one.agent == "asker" else "You guess."
        assert {messages[0]["content"] for messages in asked} == {seat}
        assert (one.prompt or result.example.prompt)[0]["content"] == seat
        assert len(asked) == (2 if one.agent == "asker" else 1)
    assert list(by_episode.values()) == [{"asker", "guesser"}] * 2
    assert runner.loaded.train_examples == 10_000


async def test_an_agent_whose_turn_did_not_come_is_left_out(make_runner, make_group, upstream):
    result = await make_runner(TWO, args={"broken": "rules"}).run(make_group(rollouts=1))
    assert reasons(result) == [None]
    assert [(one.agent, one.rewards["payoff"].value) for one in result.rollouts] == [("asker", -1.0)]
    assert upstream.rollouts == [result.rollouts[0].rollout_id]


@pytest.mark.parametrize(("broken", "words"), [("run", "no table"), ("finalize", "no winner")])
async def test_an_error_of_the_environment_fails_its_episodes_and_is_named(make_runner, make_group, broken, words):
    result = await make_runner(TWO, args={"broken": broken}).run(make_group(rollouts=1))
    assert set(reasons(result)) == {"RolloutFailed"}
    assert len(result.rollouts) == (1 if broken == "run" else 2)
    message = result.rollouts[0].error.message
    assert words in message
    assert f"in {broken}: raise" in message


async def test_a_raising_reward_is_an_error_of_that_rollout_only(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: "bad" if n == 0 else "cba"
    code = REVERSE.replace("trace.last_reply == self.data.answer", '{"cba": True}[trace.last_reply]')
    result = await make_runner(code, harness=NULL).run(make_group(rollouts=2))
    assert sorted(map(str, reasons(result))) == ["None", "RewardFunctionError"]
    (failed,) = (one for one in result.rollouts if one.error)
    assert "KeyError: 'bad'" in failed.error.message
    assert "in match: return" in failed.error.message


async def test_a_reward_that_is_no_finite_number_is_named(make_runner, make_group):
    code = REVERSE.replace("else 0.25", "else float('nan')").replace("== self.data.answer", '== ""')
    result = await make_runner(code, harness=NULL).run(make_group(rollouts=1))
    assert reasons(result) == ["RewardNotFinite"]
    assert "match is nan" in result.rollouts[0].error.message


async def test_a_setup_that_ends_the_process_fails_its_rollout_only(make_runner, make_group):
    code = REVERSE.replace(
        "    @vf.metric", "    async def setup(self, trace, runtime):\n        sys.exit('no licence')\n\n    @vf.metric"
    )
    result = await make_runner(code, harness=NULL).run(make_group(rollouts=1))
    assert reasons(result) == ["RolloutFailed"]
    assert "no licence" in result.rollouts[0].error.message


RAISING = "    async def {hook}(self, trace, runtime):\n        raise LookupError('no board')\n\n    @vf.metric"
OTHER_ERROR = "vf.HarnessError('no board')"


@pytest.mark.parametrize(
    ("old", "new", "phase", "reason"),
    [
        ("    @vf.metric", RAISING.format(hook="setup"), "prepare", "RolloutFailed"),
        ("    @vf.metric", RAISING.format(hook="finalize"), "rollout", "RolloutFailed"),
        ("return trace.num_turns >= 1", "raise LookupError('no board')", "rollout", "RolloutFailed"),
        ("return float(len(trace.last_reply))", "raise LookupError('no board')", "score", "RewardFunctionError"),
        # Not every error of scoring has the type of a task's error.
        ("return float(len(trace.last_reply))", f"raise {OTHER_ERROR}", "score", "RewardFunctionError"),
    ],
)
async def test_an_error_names_the_phase_in_which_it_happened(make_runner, make_group, old, new, phase, reason):
    result = await make_runner(REVERSE.replace(old, new), harness=NULL).run(make_group(rollouts=1))
    assert reasons(result) == [reason]
    assert result.rollouts[0].error.message.startswith(f"In the phase {phase}: ")
    assert "no board" in result.rollouts[0].error.message


def test_a_check_plays_a_taskset_to_its_end(write_environment, tmp_path):
    settings = write_environment(REVERSE, harness=NULL)
    asked = Namespace(folder=tmp_path, verifiers=importlib.metadata.version("verifiers"), seconds=300.0)
    assert example_check.check(settings, asked) == {"rewards": [0.5, 0.5], "requests": 2}


async def test_a_play_starts_the_agents_program_up_to_its_first_request(make_runner, upstream):
    runner = make_runner(REVERSE, harness=NULL)
    await play_example(runner, runner.loaded)
    assert not upstream.requests


@pytest.mark.parametrize(("hook", "phase"), [("setup", "prepare"), ("finalize", None)])
async def test_a_play_tells_of_what_fails_before_the_first_request_only(make_runner, hook, phase):
    runner = make_runner(REVERSE.replace("    @vf.metric", RAISING.format(hook=hook)), harness=NULL)
    if phase is None:
        await play_example(runner, runner.loaded)
        return
    with pytest.raises(LoadError, match=rf"split fails\. In the phase {phase}: .*no board"):
        await play_example(runner, runner.loaded)


async def test_a_failed_program_is_named_with_the_end_of_its_traceback(make_runner, make_group):
    # verifiers puts the last 2,000 characters of a program's output into the message. The cause is at their end.
    raised = "raise vf.HarnessError(\"harness 'x' exited 1: \" + 'frame / ' * 250 + 'ConnectError: no such ' + 'host')"
    code = REVERSE.replace("    @vf.metric", RAISING.format(hook="setup")).replace(
        "raise LookupError('no board')", raised
    )
    result = await make_runner(code, harness=NULL).run(make_group(rollouts=1))
    assert "harness 'x' exited 1" in result.rollouts[0].error.message
    assert "ConnectError: no such host" in result.rollouts[0].error.message


@pytest.mark.parametrize(("broken", "phase"), [("run", "rollout"), ("finalize", "score")])
async def test_an_error_of_the_environment_names_its_phase(make_runner, make_group, broken, phase):
    result = await make_runner(TWO, args={"broken": broken}).run(make_group(rollouts=1))
    assert all(one.error.message.startswith(f"In the phase {phase}: ") for one in result.rollouts)


async def test_an_agents_own_error_is_not_replaced_by_a_later_one_of_its_episode(make_runner, make_group, upstream):
    from aiohttp import web

    refusal = {"error": {"message": "the group has ended", "type": "GroupUnknown", "code": 404}}
    upstream.reply = lambda n, body: (
        web.json_response(refusal, status=404) if body["messages"][0]["content"] == "You guess." else "hello"
    )
    result = await make_runner(TWO, args={"broken": "finalize"}).run(make_group(rollouts=1))
    by_agent = {one.agent: one.error.message for one in result.rollouts}
    assert by_agent["guesser"].startswith("In the phase rollout: ")
    assert "the group has ended" in by_agent["guesser"]


async def test_an_episode_that_takes_too_long_is_ended_and_named(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: asyncio.sleep(60)
    result = await make_runner(REVERSE, harness=NULL).run(make_group(rollouts=1, deadline_seconds=20))
    assert reasons(result) == ["EnvironmentTimeout"]
    assert "rolloutTimeoutSeconds" in result.rollouts[0].error.message
    assert [one.rollout_id for one in result.rollouts] == upstream.rollouts
    await until(lambda: upstream.cancelled == 1)


async def test_the_time_of_an_episode_begins_with_its_turn(make_runner, make_group, monkeypatch):
    runner = make_runner(REVERSE, harness=NULL)
    runner._episodes = asyncio.Semaphore(1)
    limits = []

    async def fail(work, given, folder):
        limits.append(given)
        work.close()
        await asyncio.sleep(0.01)
        raise RolloutFailedError(Problem(reason="RolloutFailed", message="late"))

    monkeypatch.setattr(taskset_runner, "run_isolated", fail)
    result = await runner.run(make_group(rollouts=3, deadline_seconds=200.0, rollout_seconds=60.0))
    assert reasons(result) == ["RolloutFailed"] * 3
    assert [given.seconds for given in limits] == [60.0] * 3
    assert limits[0].ends < limits[1].ends < limits[2].ends
    assert runner.rollouts_at_once == taskset_runner.MAX_EPISODES


async def test_a_group_that_is_cancelled_leaves_no_program(make_runner, make_group, upstream):
    # Children of this process by any of its threads; servers of other tests may be among them.
    def children() -> set[str]:
        found: set[str] = set()
        for thread in Path("/proc/self/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
                found.update((thread / "children").read_text().split())
        return found

    before = children()
    upstream.reply = lambda n, body: asyncio.sleep(600)
    work = asyncio.create_task(make_runner(REVERSE, harness=NULL).run(make_group(rollouts=1)))
    await until(lambda: work.done() or bool(upstream.requests))
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await until(lambda: upstream.cancelled == 1)
    await until(lambda: children() <= before)


async def test_a_refusal_of_the_gateway_is_the_rollouts_error(make_runner, make_group, upstream):
    from aiohttp import web

    body = {"error": {"message": "the group has ended", "type": "GroupUnknown", "code": 404}}
    upstream.reply = lambda n, request: web.json_response(body, status=404)
    result = await make_runner(REVERSE, harness=NULL).run(make_group(rollouts=1))
    assert reasons(result) == ["RolloutFailed"]
    assert "the group has ended" in result.rollouts[0].error.message


async def test_demonstrations_come_from_the_tasks(make_runner):
    found = await make_runner(REVERSE, harness=NULL).demonstrate(DemonstrationRequest(example_index=1))
    assert [(message["role"], message["content"]) for message in (*found.prompt, *found.completion)] == [
        ("system", "Reverse."), ("user", "def"), ("assistant", "fed"),
    ]  # fmt: skip
