"""Samples with the unmodified SDK, tinker 0.38.0.

TINKER_BASE_URL=… TINKER_API_KEY=… python tests/support/tinker_sampling_check.py MODEL SAMPLES TOKEN...

The TOKENs are a prompt. Prints what it found as JSON, after it has checked what is true of any server. It imports
nothing of this repository, because it runs in an environment of its own.
"""

import asyncio
import json
import math
import sys
import time
from typing import Any

import tinker
from tinker import types

SECONDS = 180.0
"""Time for a response, which includes the start of engines."""


def check(response: types.SampleResponse, count: int) -> None:
    """Check the form of a response."""
    assert len(response.sequences) == count
    assert len({sequence.sequence_id for sequence in response.sequences}) == count
    for sequence in response.sequences:
        assert sequence.logprobs is not None
        assert len(sequence.tokens) == len(sequence.logprobs) > 0
        assert all(logprob <= 0 for logprob in sequence.logprobs)
        assert sequence.stop_reason in ("stop", "length")


def check_scores(client: tinker.SamplingClient, prompt: types.ModelInput) -> list[float]:
    """Check the log-probabilities of a prompt, and return them."""
    found = client.compute_logprobs(prompt).result(timeout=SECONDS)
    assert len(found) == prompt.length
    assert found[0] is None
    assert all(logprob is not None and logprob < 0 for logprob in found[1:])
    last = client.compute_logprobs(prompt, prompt_logprobs_last_n=1).result(timeout=SECONDS)
    assert last == [None] * (prompt.length - 1) + found[-1:]
    params = types.SamplingParams(max_tokens=4, temperature=0.5, seed=1, stop=[])
    best = client.sample(
        prompt, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=2, topk_sample_logprobs=3
    ).result(timeout=SECONDS)
    check(best, 2)
    assert best.prompt_logprobs == found
    assert best.topk_prompt_logprobs_np.token_ids.shape == (prompt.length, 2)
    assert math.isclose(best.topk_prompt_logprobs_np.logprobs[0, 0], -99999.0)
    for sequence in best.sequences:
        assert (len(sequence.tokens), sequence.stop_reason) == (4, "length")
        assert sequence.topk_logprobs_np.token_ids.shape == (4, 3)
    return [logprob for logprob in found if logprob is not None]


async def sample_all(client: tinker.SamplingClient, prompt: types.ModelInput, count: int) -> dict[str, Any]:
    """Ask for many samples at the same time, as RL recipes do, and give up one."""
    abandoned = asyncio.ensure_future(_one(client, prompt, 1))
    await asyncio.sleep(0.05)
    abandoned.cancel()
    started = time.monotonic()
    found = await asyncio.gather(*(_one(client, prompt, 1) for _ in range(count)))
    for response in found:
        check(response, 1)
    return {"seconds": time.monotonic() - started, "texts": len({tuple(one.sequences[0].tokens) for one in found})}


async def _one(client: tinker.SamplingClient, prompt: types.ModelInput, count: int) -> types.SampleResponse:
    return await client.sample(prompt, count, types.SamplingParams(max_tokens=8))


def main(model: str, count: int, tokens: list[int]) -> None:
    """Sample from a policy, from named weights and from the base model."""
    service = tinker.ServiceClient()
    prompt = types.ModelInput.from_ints(tokens)
    trained = service.create_lora_training_client(model, rank=8).result()
    policy = trained.save_weights_and_get_sampling_client().result(timeout=SECONDS)
    assert policy.get_base_model() == model
    check(policy.sample(prompt, 4, types.SamplingParams(max_tokens=16)).result(timeout=SECONDS), 4)
    inflight = trained.save_weights_and_get_sampling_client(kind="inflight").result(timeout=SECONDS)
    check(inflight.sample(prompt, 1, types.SamplingParams(max_tokens=16)).result(timeout=SECONDS), 1)
    copy = tinker.SamplingClient.from_sampler_handle(policy.get_sampler_handle())
    check(copy.sample(prompt, 1, types.SamplingParams(max_tokens=16)).result(timeout=SECONDS), 1)
    path = trained.save_weights_for_sampler("named").result(timeout=SECONDS).path
    named = service.create_sampling_client(model_path=path)
    assert named.get_base_model() == model
    base = service.create_sampling_client(base_model=model)
    scores = [check_scores(client, prompt) for client in (policy, named, base)]
    many = asyncio.run(sample_all(policy, prompt, count))
    service.close("success").result()
    print(json.dumps({"path": path, "scores": scores, "many": many}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(token) for token in sys.argv[3:]])
