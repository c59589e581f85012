"""Samples and specifications of sessions for the tiny model of the trainer's tests. Needs no torch."""

import random
from typing import Any

from rlrun.protocol.train_batch import Sample
from rlrun.protocol.trainer import SessionSpec

VOCABULARY = 40
MODEL = "test/tiny-qwen3"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK = 4
ALPHA = 8.0


def samples(count: int, seed: int = 0, noise: float = 0.3) -> list[Sample]:
    """Random tokens with engine log-probs around those of a uniform policy."""
    random_ = random.Random(seed)
    made = []
    for _ in range(count):
        length = random_.randint(4, 17)
        prompt = random_.randint(1, length - 2)
        mask = [i >= prompt and random_.random() < 0.9 for i in range(length)]
        mask[-1] = True
        made.append(
            Sample(
                token_ids=[random_.randrange(VOCABULARY) for _ in range(length)],
                loss_mask=mask,
                logprobs=[-3.7 + random_.uniform(-noise, noise) if m else 0.0 for m in mask],
                advantage=random_.uniform(-1, 1),
                policy_version=0,
            )
        )
    return made


def spec(run_uri: str, uid: str = "uid-1", **changes: Any) -> SessionSpec:
    values: dict[str, Any] = {
        "run_uri": run_uri,
        "run_name": "run",
        "run_uid": uid,
        "namespace": "team",
        "model": MODEL,
        "lora_alpha": ALPHA,
        "learning_rate": 1e-2,
        "max_steps": 50,
        "seq_len": 64,
        "micro_batch_tokens": 64,
        "seed": 3,
    }
    lora = {"rank": RANK, "target_modules": list(TARGETS)} | changes.pop("lora", {})
    return SessionSpec.model_validate(values | changes | {"lora": lora})
