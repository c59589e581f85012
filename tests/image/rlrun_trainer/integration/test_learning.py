"""Does it learn? A reward that likes one token, sampled from the very policy that is trained."""

import pytest
import torch
from rlrun.api.run_sections.training import KlPenalty, Loss, RatioLimit, RatioType
from rlrun.protocol.train_batch import Sample
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.optimization.step import StepPlan, train_step

from tests.support import tiny_model

LIKED = 7
PROMPT = [1, 2, 3]
DRAWN = 6


def rollouts(base: BaseModel, count: int, generator: torch.Generator) -> list[Sample]:
    """Samples from the active adapter, rewarded for every LIKED token; advantage = reward - mean."""
    ids = torch.tensor([PROMPT] * count)
    logprobs = []
    with torch.no_grad():
        for _ in range(DRAWN):
            logp = torch.log_softmax(base.model(input_ids=ids.to(base.device)).logits[:, -1].float(), -1).cpu()
            token = torch.multinomial(logp.exp(), 1, generator=generator)
            logprobs.append(logp.gather(-1, token))
            ids = torch.cat([ids, token], 1)
    rewards = (ids[:, len(PROMPT) :] == LIKED).float().mean(1)
    drawn = torch.cat(logprobs, 1)
    return [
        Sample(
            token_ids=ids[i].tolist(),
            loss_mask=[False] * len(PROMPT) + [True] * DRAWN,
            logprobs=[0.0] * len(PROMPT) + drawn[i].tolist(),
            advantage=float(rewards[i] - rewards.mean()),
            policy_version=0,
        )
        for i in range(count)
    ]


def liked(batch: list[Sample]) -> float:
    tokens = [t for s in batch for t in s.token_ids[len(PROMPT) :]]
    return tokens.count(LIKED) / len(tokens)


@pytest.mark.parametrize(
    ("loss", "penalty"),
    [
        (Loss(), None),
        (Loss(), KlPenalty(beta=0.001)),
        (Loss(ratio_limit=RatioLimit.ppo, ratio_low=0.8, ratio_high=1.2), None),
        (Loss(ratio_limit=RatioLimit.clip, ratio_type=RatioType.sequence), None),
    ],
)
def test_a_simple_reward_rises(base: BaseModel, loss: Loss, penalty: KlPenalty | None) -> None:
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    base.activate(slot)
    generator = torch.Generator().manual_seed(0)
    plan = StepPlan(2e-2, micro_batch_tokens=256, max_grad_norm=1.0, loss=loss, kl_penalty=penalty)
    rewards = []
    for _ in range(30):
        batch = rollouts(base, 64, generator)
        rewards.append(liked(batch))
        metrics = train_step(base, slot, batch, plan)
        assert metrics["mismatch_kl/all/mean"] < 1e-6
    assert sum(rewards[:3]) / 3 < 0.3
    assert sum(rewards[-3:]) / 3 > 0.8
