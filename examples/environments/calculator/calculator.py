"""Environment for arithmetic with tools: the policy may call `add` and `multiply` to evaluate an expression.

The reward is 1 for the right number in the last answer. The model must be able to call tools, and the engine must parse
tool calls (vLLM: --enable-auto-tool-choice --tool-call-parser ...).
"""

import random
import re
from typing import Any

import verifiers as vf
from datasets import Dataset

SYSTEM = "Use the tools to calculate, then answer with the number alone."
EVAL_SHARE = 8
"""One of this many expressions is held out."""


def load_environment(
    num_examples: int = 500,
    num_eval_examples: int = 64,
    largest: int = 99,
    max_turns: int = 6,
    seed: int = 0,
) -> vf.Environment:
    """Return the environment.

    Args:
        num_examples: Number of training expressions.
        num_eval_examples: Number of held-out expressions.
        largest: Largest number in an expression, at least 20.
        max_turns: Number of answers, including those that call tools.
        seed: Seed of the expressions.
    """
    if largest < 20:
        raise ValueError(f"largest {largest} leaves too few expressions. Use at least 20.")
    return vf.ToolEnv(
        dataset=_rows("train", num_examples, largest, seed),
        eval_dataset=_rows("eval", num_eval_examples, largest, seed),
        tools=[add, multiply],
        system_prompt=SYSTEM,
        rubric=vf.Rubric(funcs=[right_number]),
        max_turns=max_turns,
    )


async def add(a: int, b: int) -> str:
    """Add two whole numbers.

    Args:
        a: The first number.
        b: The second number.

    Returns:
        Their sum.
    """
    return str(int(a) + int(b))


async def multiply(a: int, b: int) -> str:
    """Multiply two whole numbers.

    Args:
        a: The first number.
        b: The second number.

    Returns:
        Their product.
    """
    return str(int(a) * int(b))


def right_number(completion: Any, answer: str) -> float:
    """Return 1 if the last number of the last answer is right. An answer that only calls tools has no number."""
    last = completion[-1] if completion else None
    if last is None or last["role"] != "assistant":
        return 0.0
    numbers = re.findall(r"-?\d+", str(last["content"] or "").replace(",", ""))
    return float(bool(numbers) and numbers[-1] == answer)


def _rows(split: str, count: int, largest: int, seed: int) -> Dataset:
    rng = random.Random(f"{split}-{seed}")
    rows = []
    while len(rows) < count:
        a, b, c = (rng.randint(2, largest) for _ in range(3))
        if ((a + 7 * b + 13 * c) % EVAL_SHARE == 0) != (split == "eval"):
            continue
        question, value = (f"{a} * {b} + {c}", a * b + c) if rng.random() < 0.5 else (f"({a} + {b}) * {c}", (a + b) * c)
        rows.append({"question": f"What is {question}?", "answer": str(value)})
    return Dataset.from_list(rows)
