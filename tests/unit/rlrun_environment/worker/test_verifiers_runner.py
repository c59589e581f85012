"""Groups against the real verifiers: rewards, rollout ids, and every way in which users' code fails."""

import asyncio

import pytest
from aiohttp import web
from rlrun.protocol.environment import MAX_SHARED_TOKENS, GroupResult
from rlrun.service.errors import ProblemError
from rlrun_environment.worker.example_play import play_example
from rlrun_environment.worker.user_code.load_error import LoadError

from tests.support.waiting import until

GOOD = """
def match(completion, answer):
    return 1.0 if completion[-1]["content"] == answer else 0.25

def load_environment(**kwargs):
    return vf.SingleTurnEnv(dataset=rows("abc", "def"), eval_dataset=rows("xyz"), rubric=vf.Rubric(funcs=[match]))
"""


def reasons(result: GroupResult) -> list[str | None]:
    return [r.error.reason if r.error else None for r in result.rollouts]


async def test_rewards_metrics_and_completions_come_back(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: "cba" if n % 2 else "zzz"
    result = await make_runner(GOOD).run(make_group())
    assert sorted(r.reward for r in result.rollouts) == [0.25, 0.25, 1.0, 1.0]
    assert result.group_id == "g1"
    assert all(r.metrics["match"] == r.reward for r in result.rollouts)
    assert reasons(result) == [None] * 4
    assert {r.completion[0]["content"] for r in result.rollouts} == {"cba", "zzz"}
    assert result.rollouts[0].stop_condition == "max_turns_reached"


async def test_each_request_carries_the_rollouts_id_and_the_sampling(make_runner, make_group, upstream):
    result = await make_runner(GOOD).run(make_group())
    sent = {headers["X-Rollout-Id"] for headers, _ in upstream.requests}
    assert sent == {r.rollout_id for r in result.rollouts}
    assert len(sent) == 4
    body = upstream.requests[0][1]
    assert (body["model"], body["temperature"], body["max_completion_tokens"]) == ("policy", 0.7, 32)


@pytest.mark.parametrize(("tokens", "shares"), [(MAX_SHARED_TOKENS, True), (MAX_SHARED_TOKENS + 1, False)])
async def test_a_group_sends_its_equal_first_requests_as_one(make_runner, make_group, upstream, tokens, shares):
    """Rewards, completions and ids belong to the rollout for which the choice was sampled."""
    upstream.reply = lambda n, body: "cba" if n == 2 else f"zz{n}"
    result = await make_runner(GOOD).run(make_group(sampling={"max_tokens": tokens}))
    sent = [headers["X-Rollout-Id"] for headers, _ in upstream.requests]
    assert upstream.shared == ([sent] if shares else [])
    assert {sent.index(r.rollout_id): (r.completion[0]["content"], r.reward) for r in result.rollouts} == {
        0: ("zz0", 0.25),
        1: ("zz1", 0.25),
        2: ("cba", 1.0),
        3: ("zz3", 0.25),
    }


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"top_logprobs": 20, "logprobs": True}])
async def test_requests_that_engines_do_not_answer_together_are_not_shared(make_runner, make_group, upstream, sampling):
    await make_runner(GOOD).run(make_group(sampling={"max_tokens": 8} | sampling))
    assert (upstream.shared, len(upstream.requests)) == ([], 4)


async def test_only_the_first_turns_of_a_group_are_one_request(make_runner, make_group, upstream):
    code = """
    class GoesOn(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return [{"role": "user", "content": "go on"}]

    def load_environment():
        return GoesOn(dataset=rows("abc"), rubric=vf.Rubric(funcs=[lambda completion: 1.0]), max_turns=2)
    """
    upstream.reply = lambda n, body: "the same"
    result = await make_runner(code).run(make_group(rollouts=3))
    assert reasons(result) == [None] * 3
    assert [len(shared) for shared in upstream.shared] == [3]
    later = [headers["X-Rollout-Id"] for headers, _ in upstream.requests[3:]]
    assert sorted(later) == sorted(upstream.shared[0])


@pytest.mark.parametrize("refusal", [{"status": 502}, {"status": 400}])
async def test_if_a_shared_request_fails_each_rollout_sends_its_own(make_runner, make_group, upstream, refusal):
    answer = {"body": b'{"error": {"message": "one choice is unusable"}}', "content_type": "application/json"}
    upstream.reply = lambda n, body: web.Response(**answer | refusal) if "n" in body else "cba"
    result = await make_runner(GOOD).run(make_group(rollouts=2))
    assert reasons(result) == [None] * 2
    assert len(upstream.shared) == 1, "retries are left to the rollouts"
    own = [headers["X-Rollout-Id"] for headers, _ in upstream.requests[2:]]
    assert sorted(own) == sorted(r.rollout_id for r in result.rollouts)


async def test_rollouts_with_sampling_arguments_of_their_own_send_their_own_requests(make_runner, make_group, upstream):
    code = """
    class Varied(vf.SingleTurnEnv):
        async def setup_state(self, state):
            state["sampling_args"] = {**state["sampling_args"], "top_p": 0.5 + len(upstream) / 10}
            upstream.append(state)
            return state

    upstream = []

    def load_environment():
        return Varied(dataset=rows("abc"), rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
    """
    result = await make_runner(code).run(make_group(rollouts=3))
    assert reasons(result) == [None] * 3
    assert upstream.shared == []
    assert sorted(body["top_p"] for _, body in upstream.requests) == [0.5, 0.6, 0.7]


async def test_eval_split_and_its_fallback(make_runner, make_group, upstream):
    await make_runner(GOOD).run(make_group(split="eval", rollouts=1))
    assert upstream.requests[-1][1]["messages"][-1]["content"] == "xyz"
    runner = make_runner(GOOD.replace('eval_dataset=rows("xyz"), ', ""))
    await runner.run(make_group(split="eval", example_index=1, rollouts=1))
    assert upstream.requests[-1][1]["messages"][-1]["content"] == "def"
    assert (runner.loaded.train_examples, runner.loaded.eval_examples) == (2, 2)


async def test_an_example_beyond_the_end_is_refused(make_runner, make_group):
    with pytest.raises(ProblemError, match="has 2") as refusal:
        await make_runner(GOOD).run(make_group(example_index=2))
    assert refusal.value.status == 404


async def test_a_raising_reward_is_an_error_of_that_rollout_only(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: "bad" if n == 0 else "cba"
    code = """
    async def picky(completion, answer):
        return {"cba": 1.0}[completion[-1]["content"]]

    def load_environment():
        return vf.SingleTurnEnv(dataset=rows("abc"), rubric=vf.Rubric(funcs=[picky]))
    """
    result = await make_runner(code).run(make_group())
    failed = [r for r in result.rollouts if r.error]
    assert [r.completion[0]["content"] for r in failed] == ["bad"]
    assert failed[0].error.reason == "RewardFunctionError"
    assert "picky raised KeyError: 'bad'" in failed[0].error.message
    assert "in picky: return" in failed[0].error.message
    assert [r.reward for r in result.rollouts if not r.error] == [1.0] * 3


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "'high'", "None"])
async def test_rewards_that_are_no_finite_number(make_runner, make_group, value):
    code = f"""
    def odd(completion):
        return {value}

    def load_environment():
        return vf.SingleTurnEnv(dataset=rows("abc"), rubric=vf.Rubric(funcs=[odd]))
    """
    result = await make_runner(code).run(make_group(rollouts=2))
    assert reasons(result) == ["RewardNotFinite"] * 2
    assert [r.reward for r in result.rollouts] == [0.0, 0.0]


async def test_group_functions_and_nested_rubrics(make_runner, make_group):
    code = """
    def rank(completions, **kwargs) -> list[float]:
        return [float(i) for i in range(len(completions))]

    def broken(states) -> list[float]:
        raise RuntimeError("no judge")

    def one(completion):
        return 1.0

    def load_environment(fail=False):
        inner = vf.RubricGroup([vf.Rubric(funcs=[broken if fail else rank]), vf.Rubric(funcs=[one])])
        return vf.SingleTurnEnv(dataset=rows("abc"), rubric=vf.RubricGroup([inner]))
    """
    good = await make_runner(code).run(make_group(rollouts=3))
    assert [r.reward for r in good.rollouts] == [1.0, 2.0, 3.0]
    assert reasons(good) == [None] * 3
    bad = await make_runner(code, args={"fail": True}).run(make_group(rollouts=3))
    assert reasons(bad) == ["RewardFunctionError"] * 3
    assert "no judge" in bad.rollouts[0].error.message


async def test_rewards_come_back_by_function_with_their_weights(make_runner, make_group):
    code = """
    def rank(completions, **kwargs) -> list[float]:
        return [float(i) for i in range(len(completions))]

    def one(completion):
        return 1.0

    def length(completion):
        return 3.0

    def load_environment():
        first = vf.Rubric(funcs=[rank, one], weights=[0.5, 0.25])
        first.add_metric(length)
        return vf.SingleTurnEnv(dataset=rows("abc"), rubric=vf.RubricGroup([first, vf.Rubric(funcs=[one])]))
    """
    result = await make_runner(code).run(make_group(rollouts=2))
    for number, rollout in enumerate(result.rollouts):
        assert {name: (r.value, r.weight) for name, r in rollout.rewards.items()} == {
            "rank": (float(number), 0.5),
            "one": (1.0, 0.25),
            "one#2": (1.0, 1.0),
        }
        assert sum(r.value * r.weight for r in rollout.rewards.values()) == pytest.approx(rollout.reward)
        assert rollout.metrics["length"] == 3.0


async def test_environment_group_reports_rewards_by_function(make_runner, make_group):
    code = """
    def one(completion):
        return 1.0

    def load_environment():
        inner = vf.SingleTurnEnv(dataset=rows("abc"), rubric=vf.Rubric(funcs=[one], weights=[0.5]))
        return vf.EnvGroup(envs=[inner], env_names=["inner"])
    """
    result = await make_runner(code).run(make_group(rollouts=1))
    assert {name: (r.value, r.weight) for name, r in result.rollouts[0].rewards.items()} == {"one": (1.0, 0.5)}


async def test_the_example_comes_back_once_per_group(make_runner, make_group, upstream):
    result = await make_runner(GOOD).run(make_group())
    assert result.example.prompt == upstream.requests[0][1]["messages"]
    assert result.example.answer == "cba"
    assert [r.prompt for r in result.rollouts] == [None] * 4


async def test_a_prompt_of_its_own_comes_back_with_the_rollout(make_runner, make_group):
    code = """
    class Seeded(vf.SingleTurnEnv):
        count = 0

        async def setup_state(self, state):
            self.count += 1
            state["prompt"] = [{"role": "user", "content": f"prompt {self.count}"}]
            return state

    def load_environment():
        return Seeded(dataset=rows("abc"), rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
    """
    result = await make_runner(code).run(make_group(rollouts=2))
    prompts = {(r.prompt or result.example.prompt)[0]["content"] for r in result.rollouts}
    assert prompts == {"prompt 1", "prompt 2"}


async def test_group_function_with_a_wrong_number_of_rewards(make_runner, make_group):
    code = """
    def short(completions) -> list[float]:
        return [1.0]

    def load_environment():
        return vf.SingleTurnEnv(dataset=rows("abc"), rubric=vf.Rubric(funcs=[short]))
    """
    result = await make_runner(code).run(make_group(rollouts=2))
    assert reasons(result) == ["RewardNotFinite"] * 2
    assert "instead of 2 numbers" in result.rollouts[0].error.message


async def test_environment_group_routes_to_watched_rubrics(make_runner, make_group):
    code = """
    def broken(completion):
        raise ZeroDivisionError("per zero")

    def load_environment():
        inner = vf.SingleTurnEnv(dataset=rows("abc"), rubric=vf.Rubric(funcs=[broken]))
        return vf.EnvGroup(envs=[inner], env_names=["inner"])
    """
    result = await make_runner(code).run(make_group(rollouts=2))
    assert reasons(result) == ["RewardFunctionError"] * 2


async def test_a_rollout_that_raises_leaves_the_others_alone(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: f"answer {n}"
    code = """
    class Fragile(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            if messages[-1]["content"] == "answer 1":
                raise LookupError("lost the board")
            return [{"role": "user", "content": "go on"}]

    def load_environment():
        return Fragile(dataset=rows("abc"), rubric=vf.Rubric(funcs=[lambda completion: 1.0]), max_turns=2)
    """
    result = await make_runner(code).run(make_group())
    assert sorted(reasons(result), key=str) == [None, None, None, "RolloutFailed"]
    message = next(r.error.message for r in result.rollouts if r.error)
    assert "lost the board" in message
    assert "in env_response" in message


async def test_an_upstream_that_refuses_is_a_failed_rollout(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: web.json_response({"error": {"message": "no such policy"}}, status=404)
    result = await make_runner(GOOD).run(make_group(rollouts=2))
    assert reasons(result) == ["RolloutFailed"] * 2
    assert "no such policy" in result.rollouts[0].error.message


async def test_an_upstream_that_stumbles_is_asked_again(make_runner, make_group, upstream):
    busy = web.json_response({"error": {"message": "later"}}, status=503, headers={"retry-after-ms": "10"})
    upstream.reply = lambda n, body: busy if n == 0 else "cba"
    result = await make_runner(GOOD).run(make_group(rollouts=1))
    assert reasons(result) == [None]
    assert len(upstream.requests) == 2


async def test_an_empty_answer_is_scored_like_any_other(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: ""
    result = await make_runner(GOOD).run(make_group(rollouts=2))
    assert reasons(result) == [None, None]
    assert [r.reward for r in result.rollouts] == [0.25, 0.25]


async def test_an_empty_answer_is_a_text_in_the_next_turn(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: ""
    code = """
    class GoesOn(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return [{"role": "user", "content": "go on"}]

    def load_environment():
        return GoesOn(dataset=rows("abc"), rubric=vf.Rubric(funcs=[lambda completion: 1.0]), max_turns=2)
    """
    result = await make_runner(code).run(make_group(rollouts=1))
    assert reasons(result) == [None]
    answers = [m for m in upstream.requests[1][1]["messages"] if m["role"] == "assistant"]
    assert [answer["content"] for answer in answers] == [""]


async def test_the_deadline_ends_a_group_and_its_requests(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: asyncio.sleep(30)
    result = await make_runner(GOOD).run(make_group(deadline_seconds=0.5, rollouts=3))
    assert reasons(result) == ["EnvironmentTimeout"] * 3
    await until(lambda: upstream.cancelled == len(upstream.requests))


TASKS = """
def load_environment(task="math", prompt="abc", **kwargs):
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": prompt}], "answer": "cba", "task": task}])
    return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[match]), **kwargs)

def match(completion, answer):
    return float(completion[-1]["content"] == answer)
"""


async def test_a_column_task_with_a_text_is_left_out(make_runner, make_group, upstream):
    runner = make_runner(TASKS)
    await runner.check_example()
    result = await runner.run(make_group(rollouts=2))
    assert (reasons(result), [r.reward for r in result.rollouts]) == ([None] * 2, [1.0] * 2)


SETUP = """
left = []

class Board(vf.MultiTurnEnv):
    async def setup_state(self, state):
        left.append("set up")
        if {broken}:
            raise {broken}
        return state

    @vf.cleanup
    async def remove(self, state):
        left.append("removed")

    async def env_response(self, messages, state, **kwargs):
        return [{{"role": "user", "content": "go on"}}]

def right(completion):
    left.append("scored")
    return 1.0

def load_environment():
    environment = Board(dataset=rows("abc"), rubric=vf.Rubric(funcs=[right]), max_turns=-1)
    environment.left = left
    return environment
"""


@pytest.mark.parametrize("broken", ["LookupError('no board')", "vf.InfraError('no board')"])
async def test_a_rollout_that_cannot_begin_is_told_before_the_environment_is_ready(make_runner, broken):
    runner = make_runner(SETUP.format(broken=broken))
    with pytest.raises(LoadError, match=r"split fails\. In the phase rollout: .*no board"):
        await play_example(runner, runner.loaded)


async def test_a_play_sets_up_and_removes_and_scores_nothing(make_runner, upstream):
    runner = make_runner(SETUP.format(broken=None))
    await play_example(runner, runner.loaded)
    assert runner.loaded.environment.left == ["set up", "removed"]
    assert not upstream.requests


async def test_an_example_that_cannot_be_played_is_told_before_the_environment_is_ready(make_runner, make_group):
    code = """
    def load_environment():
        data = Dataset.from_list([{"prompt": [{"role": "user", "content": "a"}], "info": {"task": "text"}}])
        return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric())
    """
    runner = make_runner(code)
    with pytest.raises(LoadError, match=r"example 0 of its train split fails: .*task"):
        await runner.check_example()
    result = await runner.run(make_group(rollouts=1))
    assert result.rollouts[0].error.message.startswith("In the phase prepare: ")
    assert "task" in result.rollouts[0].error.message


async def test_completion_environments_get_completions(make_runner, make_group, upstream):
    upstream.reply = lambda n, body: "" if n else "cba"
    code = TASKS.replace("dataset=data", 'dataset=data, message_type="completion"')
    result = await make_runner(code).run(make_group(rollouts=2))
    assert reasons(result) == [None] * 2
    assert sorted(r.reward for r in result.rollouts) == [0.0, 1.0]
    assert {body["prompt"] for _, body in upstream.requests} == {"abc"}
    assert upstream.requests[0][1]["max_tokens"] == 32
    assert {headers["X-Rollout-Id"] for headers, _ in upstream.requests} == {r.rollout_id for r in result.rollouts}


@pytest.mark.parametrize("message_type", ["chat", "completion"])
async def test_a_prompt_that_outgrows_the_context_ends_the_rollout_and_not_its_reward(
    make_runner, make_group, upstream, message_type
):
    refusal = {"error": {"message": "This model's maximum context length is 8 tokens."}}
    upstream.reply = lambda n, body: web.json_response(refusal, status=400) if n else "cba"
    code = f"""
    class GoesOn(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return [{{"role": "user", "content": "go on"}}]

    def load_environment():
        rubric = vf.Rubric(funcs=[lambda completion: 1.0])
        return GoesOn(dataset=rows("abc"), rubric=rubric, max_turns=3, message_type="{message_type}")
    """
    result = await make_runner(code).run(make_group(rollouts=1))
    assert (reasons(result), [r.reward for r in result.rollouts], len(upstream.requests)) == ([None], [1.0], 2)


async def test_sampling_args_of_the_environment_reach_the_engine_behind_the_runs(
    make_runner, make_group, upstream, caplog
):
    own = {"stop": ["END"], "temperature": 0.1, "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    code = TASKS.replace("dataset=data", f"dataset=data, sampling_args={own!r}")
    runner = make_runner(code)
    await runner.run(make_group(rollouts=2))
    await runner.run(make_group(rollouts=2))
    body = upstream.requests[0][1]
    assert (body["stop"], body["temperature"]) == (["END"], 0.7)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    said = [record.getMessage() for record in caplog.records if "sampling_args" in record.getMessage()]
    assert said == ["sampling_args of the environment sets temperature = 0.1; using the run's 0.7 instead"]
