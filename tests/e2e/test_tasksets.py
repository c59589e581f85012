"""Environments of verifiers.v1 take part in a run: one agent, an agent with tools, and two agents of an episode."""

from collections.abc import Callable

from demo.watch import follow
from tests.e2e.conftest import SECONDS, Platform
from tests.e2e.runs import metrics_of, rollout_errors, rollout_records

MODEL_ID = "rlrun/stub-long"
"""The stub model with room for the system prompt of a harness: its tokens are characters."""
STEPS = 2


def test_tasksets_with_one_agent_with_tools_and_with_two_agents_are_trained(
    platform: Platform, fresh_namespace: Callable[[str], str]
) -> None:
    namespace = fresh_namespace("tasksets")
    model = platform.model_object("stub-long", MODEL_ID)
    model["spec"] |= {"seqLen": 4096}
    platform.kubectl.apply(model)
    reverse = {"id": "tests/reverse-tasks", "weight": 1.0, "taskset": {"num_words": 12}}
    run = platform.run_object(
        "tasksets",
        namespace,
        model=MODEL_ID,
        maxSteps=STEPS,
        # A program starts for each turn, which takes seconds of a core: few rollouts.
        batchSize=12,
        rolloutsPerExample=2,
        oversamplingFactor=1.0,
        env=[
            reverse | {"name": "plain", "harness": {"id": "null"}},
            reverse | {"name": "shell", "harness": {"id": "bash", "edit": False}},
            {"id": "tests/duel", "weight": 1.0},
        ],
        sampling={"maxTokens": 8},
        infrastructure={"computeSize": "S"},
    )
    platform.kubectl.apply(run)

    done = follow(platform.kubectl, "tasksets", namespace, seconds=SECONDS)

    lines = metrics_of(platform, done)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    # One rollout of all may exceed a time limit while the other lane has the cores. A broken environment fails in each.
    errors = rollout_errors(platform, done)
    assert len(errors) <= 1, errors
    for name in ("plain", "shell", "duel"):
        assert any(f"reward/{name}/mean" in line for line in lines), name
    duels = [record for record in rollout_records(platform, done) if record.environment == "duel" and not record.error]
    assert {record.agent for record in duels} == {"first", "second"}
    rewards: dict[str, float] = {}
    for record in duels:
        rewards[record.episode] = rewards.get(record.episode, 0.0) + record.reward
    assert set(rewards.values()) == {0.0}, "an episode has both agents, with rewards that add up to zero"
