"""Environment for grade-school word problems: the policy reasons in words and ends with the answer.

The problems are made from a seed, so nothing is downloaded. With `dataset` they come from the Hugging Face hub instead,
in the form of GSM8K: columns `question` and `answer`, whose last line is `#### N`.
"""

import random
import re
import zlib
from typing import Any

import verifiers as vf
from datasets import Dataset, load_dataset

SYSTEM = "Reason step by step. Write the answer as a number in the last line: #### N"
NAMES = ("Ada", "Bo", "Cem", "Dina", "Eli", "Fay", "Gus", "Hana")
THINGS = ("apples", "cards", "coins", "marbles", "pencils", "shells", "stamps", "tickets")
EVAL_SHARE = 8
"""One of this many problems is held out."""
MAX_STEPS = 8


def load_environment(
    num_examples: int = 2000,
    num_eval_examples: int = 200,
    steps: int = 4,
    seed: int = 0,
    dataset: str = "",
) -> vf.Environment:
    """Return the environment.

    Args:
        num_examples: Number of training problems.
        num_eval_examples: Number of held-out problems.
        steps: Largest number of calculations in a problem, from 2 to 8.
        seed: Seed of the problems.
        dataset: Name of a data set of the hub in the form of GSM8K, such as openai/gsm8k. If empty, generate problems.
    """
    if not 2 <= steps <= MAX_STEPS:
        raise ValueError(f"steps {steps} is not between 2 and {MAX_STEPS}.")
    if dataset:
        train, held_out = _downloaded(dataset, "train"), _downloaded(dataset, "test")
    else:
        train, held_out = _made("train", num_examples, steps, seed), _made("eval", num_eval_examples, steps, seed)
    return vf.SingleTurnEnv(
        dataset=train.select(range(min(num_examples, len(train)))),
        eval_dataset=held_out.select(range(min(num_eval_examples, len(held_out)))),
        system_prompt=SYSTEM,
        rubric=vf.Rubric(funcs=[right_answer, has_answer], weights=[1.0, 0.0]),
    )


def right_answer(completion: Any, answer: str) -> float:
    """Return 1 if the number behind the last #### is the answer."""
    number = _number(completion)
    return float(number is not None and float(number) == float(answer))


def has_answer(completion: Any) -> float:
    """Return 1 if the completion has a number behind #### (a metric without weight in the reward)."""
    return float(_number(completion) is not None)


def _number(completion: Any) -> str | None:
    text = str(completion[-1]["content"] or "") if completion else ""
    found = re.findall(r"####\s*\$?(-?\d[\d,]*(?:\.\d+)?)", text)
    return found[-1].replace(",", "") if found else None


def _downloaded(name: str, split: str) -> Dataset:
    rows = load_dataset(name, "main", split=split)
    return rows.map(lambda row: {"answer": row["answer"].rpartition("####")[2].strip().replace(",", "")})


def _made(split: str, count: int, steps: int, seed: int) -> Dataset:
    rng = random.Random(f"{split}-{seed}")
    rows = []
    while len(rows) < count:
        question, answer = _problem(rng, rng.randint(2, steps))
        if (zlib.crc32(question.encode()) % EVAL_SHARE == 0) == (split == "eval"):
            rows.append({"question": question, "answer": str(answer)})
    return Dataset.from_list(rows)


def _problem(rng: random.Random, steps: int) -> tuple[str, int]:
    """Return a problem with `steps` calculations, and its answer."""
    name, things, number = rng.choice(NAMES), rng.choice(THINGS), rng.randint(3, 20)
    sentences = [f"{name} has {number} {things}."]
    for _ in range(steps):
        sentence, number = _step(rng, name, things, number)
        sentences.append(sentence)
    return " ".join([*sentences, f"How many {things} does {name} have in the end?"]), number


def _step(rng: random.Random, name: str, things: str, number: int) -> tuple[str, int]:
    divisors = [n for n in range(2, 7) if number % n == 0 and number // n >= 2]
    possible = {"more": True, "less": number > 5, "times": number <= 60, "part": bool(divisors)}
    kind = rng.choice([kind for kind, is_possible in possible.items() if is_possible])
    if kind == "more":
        packs, each = rng.randint(2, 6), rng.randint(2, 12)
        return f"{name} buys {packs} packs with {each} {things} in each.", number + packs * each
    if kind == "less":
        given = rng.randint(2, number - 2)
        return f"{name} gives {given} of them to a friend.", number - given
    if kind == "times":
        times = rng.randint(2, 4)
        return f"A sister brings {times} times as many, and {name} may keep them all.", number * (1 + times)
    part = rng.choice(divisors)
    return f"{name} makes {part} equal piles and keeps one of them.", number // part
