"""From a run's spec to what the gateway asks of the engine: seeds and exact prefixes."""

from typing import Any

import pytest
from rlrun.protocol.resolved import ResolvedRun
from rlrun_orchestrator.config_mapping import exact_prefixes, sampling_rules
from rlrun_orchestrator.inference.gateway.sampling_rules import BadRequest, CompletionKind, SamplingSeedKey


def resolved(inference: dict[str, Any] | None = None, **spec: Any) -> ResolvedRun:
    base = {"model": "a/b", "sampling": {"maxTokens": 8}, "env": [{"id": "o/e"}], "seed": 11}
    return ResolvedRun.model_validate(
        {
            "run": {"namespace": "ns", "name": "run", "uid": "uid-1", "attempt": 1},
            "spec": base | spec,
            "model": {"id": "a/b", "source": "hf://a/b", "inference": inference or {}},
            "endpoints": {"trainerUrl": "", "inferenceHost": "", "gatewayUrl": "", "environments": []},
            "artifacts": {"runUri": "s3://b/r", "environmentsUri": "s3://b/e"},
        }
    )


ON_POLICY = {"maxAsyncLevel": 0, "oversamplingFactor": 1.0}


@pytest.mark.proves("sampling.seed", "seed")
@pytest.mark.parametrize(
    ("spec", "seed"),
    [
        ({}, None),
        (ON_POLICY, 11),
        (ON_POLICY | {"sampling": {"maxTokens": 8, "seed": 5}}, 5),
        ({"sampling": {"maxTokens": 8, "seed": 0}}, 0),
    ],
)
def test_a_seed_is_sent_where_one_is_given_or_the_run_is_on_policy(spec: dict[str, Any], seed: int | None) -> None:
    draw = SamplingSeedKey(group=3, rollout=1, turn=0)
    asked = sampling_rules(resolved(**spec)).to_engine_request(CompletionKind.chat, {"messages": [{}]}, "m", draw)
    assert asked.get("seed") == (None if seed is None else draw.seed(seed))


@pytest.mark.proves(
    "sampling.maxTokens",
    "sampling.temperature",
    "sampling.topP",
    "sampling.stop",
    "sampling.minTokens",
    "sampling.repetitionPenalty",
)
def test_every_field_of_sampling_reaches_the_engine() -> None:
    sampling = {
        "maxTokens": 8, "temperature": 0.7, "topP": 0.9, "stop": ["END"], "minTokens": 2, "repetitionPenalty": 1.1
    }  # fmt: skip
    asked = sampling_rules(resolved(sampling=sampling)).to_engine_request(
        CompletionKind.chat, {"messages": [{}]}, "m", SamplingSeedKey(0, 0, 0)
    )
    names = ("max_tokens", "temperature", "top_p", "stop", "min_tokens", "repetition_penalty")
    assert [asked[name] for name in names] == [8, 0.7, 0.9, ["END"], 2, 1.1]
    assert (asked["top_k"], asked["min_p"]) == (0, 0.0), "nothing else may bend the distribution"


def test_stop_tokens_of_a_client_that_the_engine_would_ban_unseen_are_refused() -> None:
    body = {"messages": [{}], "stop_token_ids": [5]}
    banning = sampling_rules(resolved(sampling={"maxTokens": 8, "minTokens": 2}))
    with pytest.raises(BadRequest, match="minTokens"):
        banning.to_engine_request(CompletionKind.chat, body, "m", SamplingSeedKey(0, 0, 0))
    plain = sampling_rules(resolved(sampling={"maxTokens": 8}))
    assert plain.to_engine_request(CompletionKind.chat, body, "m", SamplingSeedKey(0, 0, 0))["stop_token_ids"] == [5]


def test_turns_are_bridged_only_where_they_are_joined_and_answers_are_not_rewritten() -> None:
    assert exact_prefixes(resolved())
    assert not exact_prefixes(resolved(trajectoryStrategy="branching"))
    assert not exact_prefixes(resolved({"extraArgs": ["--reasoning-parser", "qwen3"]}))
    assert not exact_prefixes(resolved({"extraArgs": ["--reasoning-parser=qwen3"]}))
