"""The variants of the trainer benchmark make the same update, and its model has the stated size."""

import sys
from pathlib import Path

import pytest
import torch
from rlrun_trainer.optimization.mfu import step_flops
from rlrun_trainer.optimization.packing import pack

from bench.trainer_batches import SHAPES, Shape, uneven_samples
from bench.trainer_variants import TrainerVariants, keep_apart

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "bench" / "uneven-text-model"))

import make_uneven_model  # noqa: E402

SMALL = Shape("small", 32, 48, 2, 2, 1, 16, 30, 12, 256)


def test_variants_make_the_same_update(tmp_path):
    variants = TrainerVariants(SMALL.save(tmp_path), "cpu", "float32", SMALL.budget)
    samples = uneven_samples(SMALL.samples, SMALL.vocabulary)
    found = {way: variants.step(way, samples) for way in variants.names}
    assert set(found) == {"packed", "padded", "plain", "sorted"}
    losses = [f["loss"] for f in found.values()]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-3)
    assert found["packed"]["padding"] < found["padded"]["padding"] == pytest.approx(found["plain"]["padding"])
    assert found["sorted"]["padding"] < found["plain"]["padding"]
    assert all(f["seconds"] > 0 for f in found.values())


def test_unpacked_batches_have_a_row_per_sample_and_all_tokens():
    samples = uneven_samples(12, 30)
    padded = keep_apart(samples, 256)
    packed = pack(samples, 256)
    assert sum(len(batch.input_ids) for batch in padded) == len(samples)
    for name in ("targets", "advantages", "engine_logprobs"):
        ours, theirs = (torch.cat([getattr(b, name) for b in found]).sort().values for found in (padded, packed))
        assert torch.equal(ours, theirs)
    for batch in padded:
        # What is predicted stands behind its position in the same row.
        assert torch.equal(batch.input_ids.flatten()[batch.predicting + 1], batch.targets)
        assert batch.sample_of.max() == batch.samples - 1


def test_a_grown_model_computes_what_the_small_one_does(monkeypatch):
    monkeypatch.setattr(make_uneven_model, "LARGE", dict(make_uneven_model.LARGE, num_hidden_layers=4))
    small = make_uneven_model.build(make_uneven_model.SMALL, 0)
    large = make_uneven_model.grow(small, make_uneven_model.build(make_uneven_model.LARGE, 1))
    ids = {character: 3 + i for i, character in enumerate(make_uneven_model.ALPHABET)}
    assert make_uneven_model.difference(small, large, ids) < 1e-2
    assert sum(p.numel() for p in large.parameters()) > 10 * sum(p.numel() for p in small.parameters())


@pytest.mark.parametrize(("tokens", "mfu", "rate"), [(16384, 0.109, 13.3e3), (65536, 0.252, 10.0e3)])
def test_operations_are_counted_as_the_anchors_count_them(tokens, mfu, rate):
    # An anchor says which share of an H100 so many tokens per second are: its own count per token follows.
    shape = SHAPES["0.6b"]
    config = shape.config()
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.pairs)
    weights = shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
    assert step_flops(weights, config, [tokens]) / tokens == pytest.approx(mfu * 989e12 / rate, rel=0.05)
