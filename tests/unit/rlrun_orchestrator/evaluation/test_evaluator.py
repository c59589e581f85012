"""Evaluation and validation beside training, in whole runs, and their arithmetic."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.protocol.environment import EnvironmentInfo, GroupRequest, GroupResult, RolloutResult, Split
from rlrun.protocol.orchestrator import RunPhase
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import EnvironmentUse, ResolvedRun
from rlrun.storage.metric_files import Line, merge_lines
from rlrun_orchestrator import config_mapping
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.evaluation.evaluator import EvaluationTask, Evaluator, EvaluatorSettings, evaluation_tasks
from rlrun_orchestrator.evaluation.metrics import (
    evaluation_values,
    k_values,
    pass_at_k,
    validation_total,
    validation_values,
)
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroups
from rlrun_orchestrator.inference.gateway.sampling_rules import CompletionKind, SamplingRules, SamplingSeedKey
from rlrun_orchestrator.rollouts.environments import PooledEnvironment
from rlrun_orchestrator.rollouts.fair_semaphore import FairSemaphore
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.storage.sample_records import StepRollouts

from tests.support.fake_environment import FakeEnvironment
from tests.support.fake_replica import FakeReplica
from tests.support.policy_refs import policy
from tests.support.run_processes import World

BASE_MODEL = "owner/tiny"
RULES = SamplingRules(Sampling(max_tokens=8))


@dataclass
class Exam(FakeEnvironment):
    """Answers evaluations only while its door is open, and counts who is inside."""

    door: asyncio.Event = field(default_factory=asyncio.Event)
    inside: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        self.door.set()

    async def roll_out(self, request: web.Request) -> web.Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.door.wait()
            return await super().roll_out(request)
        finally:
            self.inside -= 1


def lines_by_step(world: World) -> dict[int, Line]:
    return {line["step"]: line for line in merge_lines(world.lines())}


def measured(world: World, name: str) -> dict[int, float]:
    return {step: line[name] for step, line in lines_by_step(world).items() if name in line}


def before_step(world: World, act: Callable[[int], Any]) -> None:
    """Lets `act` do something (and wait) before the trainer makes a step."""
    told = world.trainer.train

    async def train(request: web.Request) -> web.Response:
        await act(int(request.match_info["step"]))
        return await told(request)

    world.trainer.train = train  # type: ignore[method-assign]


def in_step(world: World, name: str, interval: int, first: int = 0) -> None:
    """Lets no step begin before what was due until then is measured, so that no round is left out."""

    async def wait(step: int) -> None:
        due = step - step % interval
        await world.until(lambda: due < first or due in measured(world, name))

    before_step(world, wait)


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.proves(
    "eval.interval",
    "eval.numExamples",
    "eval.rolloutsPerExample",
    "eval.env.numExamples",
    "eval.env.rolloutsPerExample",
    "eval.env.id",
    "eval.env.name",
)
async def test_every_interval_and_at_the_end_with_the_settings_of_each_environment(world: World) -> None:
    world.eval_environments = {"exam": Exam("exam", rewards=[1.0, 0.0]), "quiz": Exam("quiz", rewards=[0.5])}
    world.spec["eval"] = {
        "interval": 2,
        "numExamples": 2,
        "rolloutsPerExample": 2,
        "env": [
            {"id": "owner/exam"},
            {"id": "owner/other", "name": "quiz", "numExamples": -1, "rolloutsPerExample": 4},
        ],
    }
    in_step(world, "eval/quiz/avg@4", 2)
    await world.start()
    assert await world.run() == 0
    assert measured(world, "eval/exam/avg@2") == {0: 0.5, 2: 0.5, 4: 0.5, 5: 0.5}
    assert measured(world, "eval/exam/examples") == {0: 2, 2: 2, 4: 2, 5: 2}
    assert measured(world, "eval/quiz/avg@4") == {0: 0.5, 2: 0.5, 4: 0.5, 5: 0.5}
    assert measured(world, "eval/quiz/examples") == {0: 3, 2: 3, 4: 3, 5: 3}
    exam, quiz = world.eval_environments["exam"].requests, world.eval_environments["quiz"].requests
    assert Counter((request.model[:14], request.rollouts) for request in exam) == {
        (f"policy-v{step:06d}"[:14], 2): 2 for step in (0, 2, 4, 5)
    }
    assert Counter(request.rollouts for request in quiz) == {4: 12}
    assert {request.example_index for request in exam} == {0, 1}, "the same examples each time"
    assert world.last_word.warnings == []


async def test_results_are_under_the_step_whose_policy_was_measured_whenever_they_come(world: World) -> None:
    exam = Exam("exam", rewards=[1.0])
    world.eval_environments = {"exam": exam}
    world.spec["eval"] = {"interval": 2, "evalBaseModel": False, "env": [{"id": "owner/exam"}]}

    async def late(step: int) -> None:
        if step == 2:
            exam.door.clear()
        if step == 4:
            assert 2 not in measured(world, "eval/exam/avg@1"), "it is still being measured"
            exam.door.set()
            await world.until(lambda: 2 in measured(world, "eval/exam/avg@1"))

    before_step(world, late)
    exam.door.clear()
    await world.start()
    assert await world.run() == 0
    found = lines_by_step(world)
    assert found[2]["eval/exam/avg@1"] == 1.0
    assert found[2]["reward/mean"] == 0.4375, "one line, with the step's own numbers"
    assert "eval/exam/avg@1" not in found[3]


@pytest.mark.proves("eval.evalBaseModel")
@pytest.mark.parametrize("wanted", [True, False])
async def test_the_base_model_is_measured_before_the_first_step(world: World, wanted: bool) -> None:
    world.eval_environments = {"exam": Exam("exam")}
    world.spec["eval"] = {"evalBaseModel": wanted, "env": [{"id": "owner/exam"}]}
    await world.start()
    assert await world.run() == 0
    assert set(measured(world, "eval/exam/avg@1")) == ({0, 5} if wanted else {5})


@pytest.mark.proves("checkpointId")
async def test_a_run_that_starts_from_a_checkpoint_measures_the_base_model_and_not_its_first_policy(
    world: World,
) -> None:
    world.eval_environments = {"exam": Exam("exam")}
    world.engines = [FakeReplica(adapters={BASE_MODEL})]
    world.spec["eval"] = {"env": [{"id": "owner/exam"}]}
    resolved = world.resolved

    def warm() -> ResolvedRun:
        return resolved().model_copy(update={"warm_start_from": "s3://bucket/runs/ns/other/checkpoints/step-000007"})

    world.resolved = warm  # type: ignore[method-assign]
    await world.start()
    assert await world.run() == 0
    assert set(measured(world, "eval/exam/avg@1")) == {0, 5}
    models = Counter(request.model[:14] for request in world.eval_environments["exam"].requests)
    assert models == {BASE_MODEL: 3, "policy-v000005": 3}
    asked = Counter(request["model"] for request in world.engines[0].requests)
    assert asked[BASE_MODEL] == 6, "two turns for each of three examples"


async def test_an_evaluation_that_hangs_delays_neither_the_steps_nor_the_end(world: World) -> None:
    exam = Exam("exam")
    exam.door.clear()
    world.eval_environments = {"exam": exam}
    world.spec["eval"] = {"interval": 1, "env": [{"id": "owner/exam"}]}
    world.settings["finish_deadline"] = 0.5
    await world.start()
    assert await world.run(15) == 0
    assert world.last_word.phase is RunPhase.completed
    assert len(world.trainer.batches) == 5
    assert {w.reason for w in world.last_word.warnings} == {"EvaluationSkipped", "EvaluationTimeout"}
    assert world.last_word.waiting_for is None


async def test_evaluations_get_a_share_of_the_engines_and_at_the_end_all_of_them(world: World) -> None:
    exam = Exam("exam")
    exam.door.clear()
    world.eval_environments = {"exam": exam}
    # 8 rollouts twice over are in flight, a quarter of them is 4: two groups of two.
    world.spec["eval"] = {"rolloutsPerExample": 2, "env": [{"id": "owner/exam"}]}
    seen: list[int] = []

    async def look(step: int) -> None:
        await world.until(lambda: exam.inside == 2)
        seen.append(exam.most)

    before_step(world, look)
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: exam.most > 2)
    assert seen == [2] * 5, "there are three examples, and one had to wait while training went on"
    exam.door.set()
    assert await running == 0
    assert set(measured(world, "eval/exam/avg@2")) == {0, 5}


async def test_a_resumed_run_does_not_repeat_a_finished_evaluation(world: World) -> None:
    exam = Exam("exam")
    world.eval_environments = {"exam": exam}
    world.spec["eval"] = {"interval": 2, "env": [{"id": "owner/exam"}]}
    in_step(world, "eval/exam/avg@1", 2)
    over = asyncio.Event()

    async def stop(step: int) -> None:
        if step == 2 and not over.is_set():
            await world.until(lambda: 2 in measured(world, "eval/exam/avg@1"))
            world.stop.set()
            await over.wait()
            raise web.HTTPServiceUnavailable

    before_step(world, stop)
    await world.start()
    assert await world.run() == 1
    over.set()
    world.stop.clear()
    assert world.trainer.step == 2, "it goes on where an evaluation was due"
    assert await world.run() == 0
    assert Counter(request.model[:14] for request in exam.requests) == {
        f"policy-v{step:06d}"[:14]: 3 for step in (0, 2, 4, 5)
    }


async def test_interrupted_last_evaluation_is_repeated(world: World) -> None:
    exam = Exam("exam", rewards=[1.0])
    world.eval_environments = {"exam": exam}
    world.spec["eval"] = {"evalBaseModel": False, "env": [{"id": "owner/exam"}]}
    exam.door.clear()
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: world.trainer.step == 5 and exam.inside == 3)
    world.stop.set()
    assert await running == 1
    world.stop.clear()
    exam.door.set()
    assert await world.run() == 0
    assert len(world.trainer.batches) == 5
    assert measured(world, "eval/exam/avg@1") == {5: 1.0}
    asked = len(exam.requests)
    assert await world.run() == 0
    assert len(exam.requests) == asked, "a third process has nothing left to do"


async def test_finished_run_completes_without_an_evaluation_environment(world: World) -> None:
    exam = Exam("exam")
    world.eval_environments = {"exam": exam}
    world.spec["eval"] = {"evalBaseModel": False, "env": [{"id": "owner/exam"}]}
    exam.door.clear()
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: world.trainer.step == 5 and exam.inside == 3)
    world.stop.set()
    assert await running == 1
    world.stop.clear()
    world.endpoints.clear()
    world.settings["finish_deadline"] = 0.3
    assert await world.run() == 0
    assert world.last_word.phase is RunPhase.completed
    assert [w.reason for w in world.last_word.warnings] == ["EvaluationTimeout"]


async def test_a_lost_environment_is_waited_for_and_its_examples_asked_again(world: World) -> None:
    exam = Exam("exam", rewards=[1.0])
    world.eval_environments = {"exam": exam}
    world.spec["eval"] = {"interval": 2, "evalBaseModel": False, "env": [{"id": "owner/exam"}]}

    async def leave(step: int) -> None:
        exam.away = step in (1, 2)

    before_step(world, leave)
    await world.start()
    assert await world.run() == 0
    assert measured(world, "eval/exam/error")[2] == 0.0
    assert measured(world, "eval/exam/avg@1")[2] == 1.0


async def test_failed_rewards_are_reported_and_excluded_from_evaluation_metrics(world: World) -> None:
    broken = Problem(reason="RewardFunctionError", message="ZeroDivisionError")
    world.eval_environments = {"exam": Exam("exam", rewards=[1.0, 0.0], reward_error=broken)}
    world.spec["eval"] = {"rolloutsPerExample": 2, "env": [{"id": "owner/exam"}]}
    await world.start()
    assert await world.run() == 0
    line = lines_by_step(world)[5]
    assert line["eval/exam/error"] == 0.5
    assert line["eval/exam/avg@2"] == 1.0, "every second rollout failed, the others have reward 1"
    assert line["eval/exam/pass@1"] == 1.0
    assert "eval/exam/pass@2" not in line, "no example has two rollouts that count"


class Formatted(FakeEnvironment):
    """Asks for JSON, which the gateway refuses."""

    async def _one(self, asked: GroupRequest, index: int) -> RolloutResult:
        assert self.http is not None
        rollout = f"r{index}"
        body = {"model": asked.model, "messages": [{"role": "user"}], "response_format": {"type": "json_object"}}
        headers = {"X-Rollout-Id": rollout}
        async with self.http.post(f"{asked.base_url}/chat/completions", json=body, headers=headers) as response:
            problem = Problem(reason="RolloutFailed", message=f"BadRequestError: {response.status}")
        return RolloutResult(rollout_id=rollout, reward=0.0, error=problem)


async def test_an_evaluation_whose_requests_are_refused_says_why(world: World) -> None:
    world.eval_environments = {"exam": Formatted("exam")}
    world.spec["eval"] = {"interval": 5, "numExamples": 1, "env": [{"id": "owner/exam"}]}
    await world.start()
    assert await world.run() == 0
    stored = [summary for summary in world.summaries() if summary.environment == "exam"]
    assert stored
    for record in world.rollouts(stored[-1].step, "eval-exam"):
        assert record["error"]["reason"] == "RequestRefused"
        assert "response_format" in record["error"]["message"]
        assert "BadRequestError: 400" in record["error"]["message"]


@pytest.mark.proves("sampling.seed")
async def test_with_a_seed_evaluations_draw_the_same_whatever_training_does(world: World) -> None:
    def reward(text: str) -> float:
        return (hash(text) % 100) / 100

    world.engines = [FakeReplica(seeded=True), FakeReplica(seeded=True)]
    world.eval_environments = {"exam": Exam("exam", reward_of=reward)}
    world.spec |= {
        "sampling": {"maxTokens": 16, "seed": 3},
        "eval": {"interval": 2, "rolloutsPerExample": 4, "env": [{"id": "owner/exam"}]},
    }
    in_step(world, "eval/exam/avg@4", 2)
    await world.start()
    assert await world.run() == 0
    found = measured(world, "eval/exam/avg@4")
    assert set(found) == {0, 2, 4, 5}
    assert len(set(found.values())) == 1, "the fake engine's answers follow from the seeds alone"


# --- validation -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("val.interval", "val.numExamples", "val.rolloutsPerExample")
async def test_validation_measures_the_current_policy_on_held_out_examples(world: World) -> None:
    world.environments = {"words": FakeEnvironment("words", rewards=[1.0, 0.0]), "more": FakeEnvironment("more")}
    world.spec["val"] = {"interval": 2, "numExamples": 3, "rolloutsPerExample": 2}
    in_step(world, "val_reward/mean", 2, first=2)
    await world.start()
    assert await world.run() == 0
    asked = [r for e in world.environments.values() for r in e.requests if r.split is Split.eval]
    assert Counter(request.model[:14] for request in asked) == {"policy-v000002": 3, "policy-v000004": 3}
    assert {request.rollouts for request in asked} == {2}
    assert world.environments["words"].groups["eval"] == 4, "two of the three, in each of two rounds"
    assert measured(world, "val_reward/words/mean") == {2: 0.5, 4: 0.5}
    assert measured(world, "val_reward/mean") == {2: 0.5, 4: 0.5}
    assert measured(world, "reward/mean").keys() == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(("kind", "drift"), [(PolicyKind.weights, 3.0), (PolicyKind.adapter, None)])
async def test_with_whole_weights_results_tell_how_far_training_went_meanwhile(
    kind: PolicyKind, drift: float | None
) -> None:
    schedule = RunSchedule(10)
    progress, told, saved = RunProgress(), list[dict[str, float]](), list[int]()
    stored: list[StepRollouts] = []

    async def roll_out(request: GroupRequest) -> GroupResult:
        progress.policy_version = 7
        rollouts = [RolloutResult(rollout_id="r", reward=1.0)]
        return GroupResult(group_id=request.group_id, rollouts=rollouts, seconds=0.1)

    info = EnvironmentInfo(name="exam", id="owner/exam", ready=True, eval_examples=1)
    client: Any = SimpleNamespace(name="exam", roll_out=roll_out, group_deadline=5.0)
    environments: Any = {EnvironmentUse.eval: SimpleNamespace(environments={"exam": PooledEnvironment(client, info)})}
    evaluator = Evaluator(
        [EvaluationTask(EnvironmentUse.eval, "exam", 4, -1, 1)],
        environments,
        LiveGroups(BASE_MODEL),
        progress,
        StatusConditions(),
        schedule,
        EvaluatorSettings(
            "http://gateway", SamplingRules(Sampling(max_tokens=8)), 8, base_model=False, warm_start=False
        ),
        lambda step, values: told.append(values),
        stored.append,
        lambda: saved.append(len(evaluator.state()["measured"])),
    )
    evaluator.after_step(4, policy(4, "s3://bucket/run").model_copy(update={"kind": kind}))
    await evaluator.finish(5.0)
    (values,) = told
    assert saved == [1], "the state is saved once it names the measurement"
    assert values["eval/exam/avg@1"] == 1.0
    assert values.get("eval/exam/drift") == drift
    (rollouts,) = stored
    assert (rollouts.step, rollouts.use, rollouts.count) == (4, "eval-exam", 1)


SHARED = {"maxTokens": 4, "temperature": 0.5, "topP": 0.9, "minP": 0.1, "enableThinking": True}
OWN = {"maxTokens": 5, "temperature": 0, "topP": 0.8, "minP": 0.2, "reasoningEffort": "low"}


@pytest.mark.proves(
    "eval.sampling.maxTokens",
    "eval.sampling.temperature",
    "eval.sampling.topP",
    "eval.sampling.minP",
    "eval.sampling.enableThinking",
    "eval.sampling.reasoningEffort",
    "eval.env.sampling.maxTokens",
    "eval.env.sampling.temperature",
    "eval.env.sampling.topP",
    "eval.env.sampling.minP",
    "eval.env.sampling.enableThinking",
    "eval.env.sampling.reasoningEffort",
)
@pytest.mark.parametrize(
    ("shared", "own", "of_own", "of_other"),
    [
        (
            SHARED,
            OWN,
            (5, 0, 0.8, 0.2, {"enable_thinking": True, "reasoning_effort": "low"}),
            (4, 0.5, 0.9, 0.1, {"enable_thinking": True}),
        ),
        (
            {"reasoningEffort": "high"},
            {"enableThinking": False},
            (16, 1.0, 1.0, 0.0, {"enable_thinking": False, "reasoning_effort": "high"}),
            (16, 1.0, 1.0, 0.0, {"reasoning_effort": "high"}),
        ),
    ],
)
async def test_an_evaluation_is_sampled_as_its_environment_says(
    tmp_path: Path, shared: dict[str, Any], own: dict[str, Any], of_own: tuple[Any, ...], of_other: tuple[Any, ...]
) -> None:
    world = World(tmp_path)
    world.environments, world.urls, world.trainer_url = {"a": FakeEnvironment("a")}, {"a": "http://a"}, "http://trainer"
    entries = [{"id": "owner/exam", "sampling": own}, {"id": "owner/other"}]
    world.spec = {"eval": {"interval": 4, "sampling": shared, "env": entries}}
    run, groups = world.resolved(), LiveGroups(BASE_MODEL)
    asked: dict[str, tuple[Any, ...]] = {}

    def member(name: str) -> PooledEnvironment:
        async def roll_out(request: GroupRequest) -> GroupResult:
            group = groups.get(request.group_id)
            assert group is not None
            assert group.rules is not None
            body = group.rules.with_template({"messages": [{}]})
            sent = group.rules.to_engine_request(CompletionKind.chat, body, "m", SamplingSeedKey(0, 0, 0))
            fields = ("max_tokens", "temperature", "top_p", "min_p", "chat_template_kwargs")
            asked[name] = tuple(sent[field] for field in fields)
            assert request.sampling == {"temperature": sent["temperature"], "max_tokens": sent["max_tokens"]}
            rollouts = [RolloutResult(rollout_id="r", reward=1.0)]
            return GroupResult(group_id=request.group_id, rollouts=rollouts, seconds=0.1)

        info = EnvironmentInfo(name=name, id=f"owner/{name}", ready=True, eval_examples=1)
        client: Any = SimpleNamespace(name=name, roll_out=roll_out, group_deadline=5.0)
        return PooledEnvironment(client, info)

    environments: Any = {EnvironmentUse.eval: SimpleNamespace(environments={n: member(n) for n in ("exam", "other")})}
    evaluator = Evaluator(
        evaluation_tasks(run),
        environments,
        groups,
        RunProgress(),
        StatusConditions(),
        RunSchedule(10),
        config_mapping.evaluation(run),
        lambda step, values: None,
        lambda rollouts: None,
        lambda: None,
    )
    evaluator.after_step(4, policy(4, "s3://bucket/run"))
    await evaluator.finish(60.0)
    assert asked == {"exam": of_own, "other": of_other}


@pytest.mark.parametrize("extended", [False, True])
async def test_a_group_that_waits_for_its_share_holds_no_room_of_the_environment(extended: bool) -> None:
    in_progress, go_on = asyncio.Event(), asyncio.Event()

    async def roll_out(request: GroupRequest) -> GroupResult:
        in_progress.set()
        await go_on.wait()
        rollouts = [RolloutResult(rollout_id=f"r{n}", reward=1.0) for n in range(request.rollouts)]
        return GroupResult(group_id=request.group_id, rollouts=rollouts, seconds=0.1)

    info = EnvironmentInfo(name="exam", id="owner/exam", ready=True, eval_examples=3)
    client: Any = SimpleNamespace(name="exam", roll_out=roll_out, group_deadline=5.0)
    member = PooledEnvironment(client, info, limit=FairSemaphore(4))
    evaluator = Evaluator(
        [EvaluationTask(EnvironmentUse.eval, "exam", 4, -1, 2)],
        cast(Any, {EnvironmentUse.eval: SimpleNamespace(environments={"exam": member})}),
        LiveGroups(BASE_MODEL),
        RunProgress(),
        StatusConditions(),
        RunSchedule(10),
        EvaluatorSettings(
            "http://gateway", SamplingRules(Sampling(max_tokens=8)), 8, base_model=False, warm_start=False
        ),
        lambda step, values: None,
        lambda rollouts: None,
        lambda: None,
    )
    if extended:
        await evaluator.finish(60.0)
    evaluator.after_step(4, policy(4, "s3://bucket/run"))
    await asyncio.wait_for(in_progress.wait(), 60)
    for _ in range(20):
        await asyncio.sleep(0)
    assert member.limit is not None
    assert (member.limit.in_use, member.has_slots(2)) == (2, True), "training may use the rest"
    go_on.set()
    await evaluator.finish(60.0)
    assert member.limit.in_use == 0


# --- arithmetic -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_with_a_success(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize("case", [(4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)])
def test_pass_at_k_of_nonsense_is_refused(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(*case)


@pytest.mark.parametrize(
    ("rollouts", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])]
)
def test_ks(rollouts: int, expected: list[int]) -> None:
    assert k_values(rollouts) == expected


def results(*groups: list[float | None]) -> list[list[RolloutResult]]:
    """None is a rollout that failed."""
    problem = Problem(reason="RolloutFailed", message="x")
    return [
        [
            RolloutResult(rollout_id=str(i), reward=r or 0.0, error=None if r is not None else problem)
            for i, r in enumerate(g)
        ]
        for g in groups
    ]


def test_values_of_an_evaluation() -> None:
    found = evaluation_values("e", 4, results([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.5, 0.0], [0.25, None, None, None], []))
    assert found["eval/e/avg@4"] == pytest.approx((1.0 + 2.5 + 0.25) / 9)
    assert found["eval/e/error"] == pytest.approx(7 / 16)
    assert found["eval/e/examples"] == 4
    assert found["eval/e/pass@1"] == pytest.approx((1 / 4 + 2 / 4 + 0) / 3)
    assert found["eval/e/pass@2"] == pytest.approx((3 / 6 + 5 / 6) / 2), "examples with two rollouts that count"
    assert found["eval/e/pass@4"] == 1.0


def test_rollouts_of_all_agents_of_an_episode_count() -> None:
    found = evaluation_values("e", 2, results([1.0, 0.0, 0.5, None]))
    assert (found["eval/e/error"], found["eval/e/avg@2"]) == (0.25, 0.5)


def test_each_agent_is_measured_by_itself_and_the_environment_is_their_mean() -> None:
    def duel(*first_won: bool) -> list[RolloutResult]:
        return [
            RolloutResult(rollout_id=f"{agent}{n}", episode=f"e{n}", agent=agent, reward=float(won == (agent == "ann")))
            for n, won in enumerate(first_won)
            for agent in ("ann", "bob")
        ]

    results = [duel(True, True), duel(True, False)]
    found = evaluation_values("e", 2, results)
    assert {name: value for name, value in found.items() if "@" in name} == {
        "eval/e/avg@2": 0.5, "eval/e/pass@1": 0.5, "eval/e/pass@2": 0.75,
        "eval/e/ann/avg@2": 0.75, "eval/e/ann/pass@1": 0.75, "eval/e/ann/pass@2": 1.0,
        "eval/e/bob/avg@2": 0.25, "eval/e/bob/pass@1": 0.25, "eval/e/bob/pass@2": 0.5,
    }  # fmt: skip
    assert found["eval/e/error"] == 0.0
    measured = validation_values("e", 2, [group[:3] for group in results])
    assert {name: value for name, value in measured.items() if "mean" in name} == {
        "val_reward/e/mean": 0.375, "val_reward/e/ann/mean": 0.75, "val_reward/e/bob/mean": 0.0,
    }  # fmt: skip
    many = [[RolloutResult(rollout_id=str(n), episode=str(n), agent=f"a{n}", reward=1.0) for n in range(17)]]
    assert not [name for name in evaluation_values("e", 17, many) if name.count("/") > 2]


def test_an_environment_that_never_answered_has_no_reward_and_every_error() -> None:
    assert evaluation_values("e", 2, [[], []]) == {"eval/e/error": 1.0, "eval/e/examples": 2.0}
    assert validation_values("e", 2, [[]]) == {"val_reward/e/error": 1.0, "val_reward/e/examples": 1.0}
    assert validation_total([[]]) == {}


def test_rewards_that_are_no_numbers_count_as_errors() -> None:
    assert validation_values("e", 2, results([float("nan"), 1.0])) == {
        "val_reward/e/error": 0.5,
        "val_reward/e/examples": 1.0,
        "val_reward/e/mean": 1.0,
    }


@pytest.mark.parametrize(
    ("use", "steps"),
    [(EnvironmentUse.eval, [3, 6, 7]), (EnvironmentUse.train, [3, 6])],
)
def test_due(use: EnvironmentUse, steps: list[int]) -> None:
    measurement = EvaluationTask(use, "e", 3, 1, 1)
    assert [step for step in range(8) if measurement.due(step, 7)] == steps
