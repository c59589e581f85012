"""The three ways that the trainer's benchmark times mean one and the same update, and its model is what it says."""

import sys
from pathlib import Path

import pytest
import torch
from rlrun_trainer.packing import pack

from bench.trainer_batches import SHAPES, Shape, uneven_samples
from bench.trainer_ways import Ways, flops_per_token, peak_flops, unpacked

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "uneven-text-model"))

import make_uneven_model  # noqa: E402

SMALL = Shape("small", 32, 48, 2, 2, 1, 16, 30, 12, 256)


def test_the_three_ways_make_the_same_update(tmp_path):
    ways = Ways(SMALL.save(tmp_path), "cpu", "float32", SMALL.budget)
    samples = uneven_samples(SMALL.samples, SMALL.vocabulary)
    found = {way: ways.step(way, samples) for way in ways.names}
    assert set(found) == {"packed", "padded", "plain"}
    losses = [f["loss"] for f in found.values()]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)
    assert found["packed"]["padding"] < found["padded"]["padding"] == pytest.approx(found["plain"]["padding"])
    assert all(f["seconds"] > 0 for f in found.values())


def test_without_packing_every_sample_has_a_row_and_every_token_is_there():
    samples = uneven_samples(12, 30)
    padded = unpacked(samples, 256)
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


def test_the_count_of_operations_is_that_of_the_anchors():
    # The anchors' own figures: 10.9 % of an H100 at 13.3k tokens per second, 25.2 % at 10.0k.
    assert flops_per_token(SHAPES["0.6b"], 16384) == pytest.approx(0.109 * 989e12 / 13.3e3, rel=0.05)
    assert flops_per_token(SHAPES["0.6b"], 65536) == pytest.approx(0.252 * 989e12 / 10.0e3, rel=0.05)
    assert peak_flops("NVIDIA H200") == (989e12, True)
    assert peak_flops("NVIDIA X") == (989e12, False)
