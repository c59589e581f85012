"""Environment of the benchmarks; rewards and waits are equal on both sides."""

import sys
from collections import Counter
from pathlib import Path

from bench import trl_worker
from bench.tasks import UNEVEN, WAITING

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(UNEVEN.folder), str(WAITING.folder)]

import slow_api  # noqa: E402
import uneven_text  # noqa: E402
from uneven_text_data import dataset, draw_length  # noqa: E402


def test_most_texts_are_short_and_a_few_are_long() -> None:
    lengths = [len(text) for text in dataset(1000, 0, "train", 4, 48)]
    count = Counter("short" if n <= 12 else "long" if n >= 36 else "middle" for n in lengths)
    assert (min(lengths), max(lengths)) == (4, 48)
    assert count["short"] > 380
    assert 80 < count["long"] < 200
    # What padding to the longest would cost.
    assert max(lengths) / (sum(lengths) / len(lengths)) > 2.5


def test_lengths_stay_inside_their_bounds() -> None:
    import random

    rng = random.Random(0)
    assert {draw_length(rng, 4, 6) for _ in range(500)} == {4, 5, 6}


def test_reversed_text_gets_the_full_reward() -> None:
    environment = uneven_text.load_environment(num_examples=20, num_eval_examples=5)
    row = environment.get_dataset()[0]
    text = row["prompt"][-1]["content"]
    assert row["answer"] == text[::-1]
    assert uneven_text.reversed_similarity([{"role": "assistant", "content": text[::-1]}], row["answer"]) == 1.0
    assert uneven_text.reversed_similarity([], row["answer"]) == 0.0
    train, held_out = (set(d["answer"]) for d in (environment.get_dataset(), environment.get_eval_dataset()))
    assert not train & held_out


def test_both_sides_use_the_same_texts() -> None:
    texts, similarity = trl_worker.texts_of(UNEVEN.trl_settings(ROOT, 0, 1))
    ours = uneven_text.load_environment(**UNEVEN.env_args).get_dataset()
    assert texts == [row[-1]["content"] for row in ours["prompt"]]
    assert similarity("ba", "ab") == 1.0


def test_waits_of_trl_equal_those_of_slow_api() -> None:
    args = WAITING.env_args
    ours = slow_api.OutsideCall(args["mean_seconds"], args["sigma"], args.get("seed", 0))
    theirs = trl_worker.waits(args["mean_seconds"], args["sigma"], args.get("seed", 0))
    answers = ["cba", "fed", "cba", "cba"]
    drawn = [ours.seconds(answer) for answer in answers]
    assert drawn == [theirs(answer) for answer in answers]
    assert len(set(drawn)) == 4


def test_slow_api_accepts_the_arguments_of_the_task() -> None:
    assert len(slow_api.load_environment(**WAITING.env_args).get_dataset()) == 2000
