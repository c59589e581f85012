"""The names that users of RL trainers look for are there: in a step's metrics and on the Prometheus page."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rlrun_trainer.optimization.mfu import active_weights, model_step_flops, peak_flops, step_flops
from rlrun_trainer.sessions.step_timer import StepTimer
from transformers import Gemma3Config

from tests.support import tiny_model
from tests.support.reference_tables import documented
from tests.support.trainer_client import Client

NAMES = [
    "loss/mean",
    "entropy/all/mean",
    "mismatch_kl/all/mean",
    "mismatch_kl/all/max",
    "is_masked/mean",
    "optim/lr",
    "optim/grad_norm",
    "perf/throughput",
    "time/step",
    "time/wait_for_batch",
    "time/forward_backward",
    "time/broadcast_weights",
    "time/save_ckpt",
]
ON_GPU = {"perf/mfu": "trainer_mfu_percent", "perf/peak_memory": "trainer_peak_memory_gib"}
PROMETHEUS = [
    "trainer_step",
    "trainer_loss",
    "trainer_throughput_tokens_per_sec",
    "trainer_last_step_timestamp_seconds",
    "trainer_grad_norm",
    "trainer_learning_rate",
    "trainer_entropy",
    "trainer_mismatch_kl",
    "trainer_kl_ent_ratio",
]


async def test_a_step_reports_every_documented_metric(client: Client, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    metrics = (await client.step(0)).metrics
    assert [name for name in NAMES if name not in metrics] == []
    assert [name for name in [*metrics, *ON_GPU] if documented(name) is None] == [], (
        "docs/reference/metrics.md lacks them"
    )
    assert metrics["time/save_ckpt"] == 0.0
    page = (await client.call("GET", "/metrics"))[1]
    told = set(re.findall(r'^(\w+){session="run"} [0-9.e+-]+$', page, re.MULTILINE))
    assert [name for name in PROMETHEUS if name not in told] == []
    for name in ON_GPU.values():
        assert f"# TYPE {name} gauge" in page
    ratio = float(re.search(r"^trainer_kl_ent_ratio\S* (\S+)$", page, re.MULTILINE)[1])  # type: ignore[index]
    assert ratio == pytest.approx(metrics["mismatch_kl/all/mean"] / metrics["entropy/all/mean"])


def test_step_timer_separates_waiting_from_saving() -> None:
    now = [10.0]
    pace = StepTimer(lambda: now[0])
    now[0] = 12.0
    assert pace.begin() == {"time/wait_for_batch": 2.0, "time/save_ckpt": 0.0}
    now[0] = 20.0
    pace.finish_step()
    with pace.saving():
        now[0] = 23.0
    now[0] = 24.0
    assert pace.begin() == {"time/wait_for_batch": 1.0, "time/save_ckpt": 3.0}
    assert pace.begin()["time/save_ckpt"] == 0.0


CONFIG = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, head_dim=8, hidden_size=32)


def test_flops_of_a_step() -> None:
    # 6 per weight and token, and 6 * layers * heads * head size per pair of tokens.
    assert step_flops(1000.0, CONFIG, [3, 5]) == 6 * 1000 * 8 + 6 * 2 * 4 * 8 * (9 + 25)


def test_work_of_a_model_with_a_vision_tower_is_that_of_its_language_model() -> None:
    config = Gemma3Config(text_config={"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8})
    decoder = SimpleNamespace(named_parameters=lambda: [("layers.0.mlp.weight", torch.zeros(1000))])
    tower = [("vision_tower.layers.0.mlp.weight", torch.zeros(500))]
    model: Any = SimpleNamespace(config=config, get_decoder=lambda: decoder, named_parameters=lambda: tower)
    assert model_step_flops(model, [3, 5]) == step_flops(1000.0, CONFIG, [3, 5])


def test_active_weights_exclude_embeddings_adapters_and_idle_experts() -> None:
    parameters = [
        ("model.embed_tokens.weight", 10_000),
        ("lm_head.weight", 10_000),
        ("model.layers.0.self_attn.q_proj.weight", 100),
        ("model.layers.0.self_attn.q_proj.lora_A.default.weight", 8),
        ("model.layers.0.mlp.experts.3.up_proj.weight", 40),
    ]
    assert active_weights(parameters, CONFIG) == 140
    for field in ("num_experts", "n_routed_experts"):
        mixture = SimpleNamespace(**vars(CONFIG), num_experts_per_tok=1, **{field: 4})
        assert active_weights(parameters, mixture) == 110


@pytest.mark.parametrize(
    ("device", "tera"), [("NVIDIA H200", 989.0), ("NVIDIA L40S", 362.0), ("NVIDIA L4", 121.0), ("GeForce 256", None)]
)
def test_peaks(device: str, tera: float | None) -> None:
    assert peak_flops(device) == (tera * 1e12 if tera else None)
