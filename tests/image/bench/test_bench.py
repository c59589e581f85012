"""The variants of the trainer benchmark make the same update, and its model has the stated size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rlrun_trainer.optimization.mfu import step_flops

from bench import tinker, trainer_image, trainer_slots
from bench.trainer import WAYS
from bench.trainer_batches import SHAPES, Shape, uneven_samples
from bench.trainer_variants import TrainerVariants

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "bench" / "uneven-text-model"))

import make_uneven_model  # noqa: E402

SMALL = Shape("small", 32, 48, 2, 2, 1, 16, 30, 12, 256)


def test_variants_make_the_same_update(tmp_path):
    variants = TrainerVariants(SMALL.save(tmp_path), "cpu", "float32", SMALL.budget)
    samples = uneven_samples(SMALL.samples, SMALL.vocabulary)
    found = {way: variants.step(way, samples) for way in WAYS}
    losses = [f["loss"] for f in found.values()]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)
    assert found["packed"]["padding"] < found["plain"]["padding"] > found["sorted"]["padding"]
    assert all(f["seconds"] > 0 for f in found.values())


def test_slots_are_opened_and_activated_beside_peft(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_slots, "SLOTS", 3)
    monkeypatch.setattr(trainer_slots.machine_load, "settled_load", lambda: 0.0)
    opened, activated = trainer_slots.slot_results(SMALL.save(tmp_path))
    assert (len(opened.samples), len(activated.samples)) == (3, trainer_slots.SWITCHES)
    assert opened.figures["peft_ms"] > 0 < activated.figures["peft_ms"]


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


def test_each_of_two_processes_gets_its_half_of_a_batch():
    command = [sys.executable, "-m", "bench.wire_ranks", "--emit", "--sequences", "64", "--length", "512"]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=300, check=True).stdout
    lines = [line.removeprefix(trainer_image.MARK) for line in printed.splitlines() if trainer_image.MARK in line]
    found = {result.name: result for result in map(trainer_image.parse_result, map(json.loads, lines))}
    assert found.keys() == {"bytes of a rank", "memory of a rank", "CPU of a rank"}
    assert found["bytes of a rank"].ratio == pytest.approx(0.5, abs=0.05)


def test_clients_programs_are_timed_against_a_real_trainer(monkeypatch):
    monkeypatch.setattr(tinker, "CLIENTS", 2)
    monkeypatch.setattr(tinker, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(tinker.machine_load, "settled_load", lambda: 0.0)
    rows = tinker.measure(repeats=1, calls=2, updates=1)
    assert all(row.ratio > 0 for row in rows)
    assert rows[0].ratio <= rows[1].ratio
