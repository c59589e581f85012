"""One GRPO run with TRL in its virtual environment, as a user would write it, with the settings of a task.

    <trl's python> -P bench/trl_worker.py SETTINGS.json TRACE.jsonl

SETTINGS is `bench.tasks.Task.trl_settings`. TRACE gets a line per event: `loaded` with versions, `began` at the start
of the first step, `step` with reward and seconds at the end of each step. The run ends at the target or at max_steps.
"""

import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

WINDOW = 3
EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "environments" / "reverse_text"


def texts_of(settings: dict[str, Any]) -> tuple[list[str], Callable[[str, str], float]]:
    """Return the training texts and the reward function, from the environment's data module."""
    folder = Path(settings["environment_folder"])
    if not (folder / "pyproject.toml").exists():
        raise FileNotFoundError(f"{folder} is not an environment: it has no pyproject.toml")
    sys.path[:0] = [str(folder), str(EXAMPLES)]
    from reverse_text_data import dataset, similarity

    args = dict(settings["env_args"])
    if (folder / "uneven_text_data.py").exists():
        from uneven_text_data import dataset
    texts = dataset(args["num_examples"], args.get("seed", 0), "train", args["min_length"], args["max_length"])
    return texts, similarity


def waits(mean_seconds: float, sigma: float, seed: int) -> Callable[[str], float]:
    """Return a function that returns the seconds that a call for an answer takes, distributed as in
    examples/environments/slow_api.
    """
    draws: dict[str, random.Random] = {}

    def seconds(answer: str) -> float:
        mine = draws.setdefault(answer, random.Random(f"{seed}-{answer}"))
        return mine.lognormvariate(math.log(mean_seconds) - sigma**2 / 2, sigma)

    return seconds


def main() -> None:
    """Load the model and train until the target."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    trace = Path(sys.argv[2]).open("w")  # noqa: SIM115 - open until the process ends

    def event(kind: str, **values: Any) -> None:
        trace.write(json.dumps({"event": kind, "at": time.time(), **values}) + "\n")
        trace.flush()

    import torch

    torch.set_num_threads(settings["threads"])
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    texts, similarity = texts_of(settings)
    rows = [{"prompt": [{"role": "user", "content": text}], "text": text} for text in texts]
    wait = waits(**{name: settings["env_args"].get(name, 0) for name in ("mean_seconds", "sigma", "seed")})

    def score(completions: list[Any], text: list[str]) -> list[float]:
        return [similarity(c[-1]["content"] or "", t) for c, t in zip(completions, text, strict=True)]

    def reward(completions: list[Any], text: list[str], **_: Any) -> list[float]:
        return score(completions, text)

    async def slow_reward(completions: list[Any], text: list[str], **_: Any) -> list[float]:
        """Wait for all rollouts of a step at once, which is the best that TRL offers for slow rewards."""
        await asyncio.gather(*(asyncio.sleep(wait(t[::-1])) for t in text))
        return score(completions, text)

    class Watch(TrainerCallback):  # type: ignore[misc]
        """Callback that writes the trace and stops at the target."""

        def __init__(self) -> None:
            self.rewards: list[float] = []
            self.ended = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                event("began")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.ended = time.time()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if not logs or "reward" not in logs:
                return
            self.rewards.append(float(logs["reward"]))
            event(
                "step",
                step=state.global_step,
                ended=self.ended,
                reward=float(logs["reward"]),
                rollouts=settings["batch_size"],
                length=logs.get("completions/mean_length"),
            )
            recent = self.rewards[-WINDOW:]
            if len(recent) == WINDOW and sum(recent) / WINDOW >= settings["target"]:
                control.should_training_stop = True

    config = GRPOConfig(
        output_dir=str(Path(sys.argv[2]).with_suffix(".out")),
        use_cpu=True,
        bf16=False,
        seed=settings["seed"],
        per_device_train_batch_size=settings["batch_size"],
        gradient_accumulation_steps=1,
        num_generations=settings["rollouts_per_example"],
        max_completion_length=settings["max_tokens"],
        temperature=settings["temperature"],
        max_steps=settings["max_steps"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="none",
        num_iterations=1,
        use_transformers_continuous_batching=settings.get("continuous_batching", False),
        # Saves memory but costs time; the trainer of this project does not use it on CPUs either.
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    lora = LoraConfig(
        r=settings["lora_rank"],
        lora_alpha=settings["lora_alpha"],
        lora_dropout=0.0,
        target_modules=settings["target_modules"],
        task_type="CAUSAL_LM",
    )
    tokenizer = AutoTokenizer.from_pretrained(settings["model_folder"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(settings["model_folder"], dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=slow_reward if settings["waits"] else reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[Watch()],
    )
    packages = ("trl", "torch", "transformers", "peft", "accelerate")
    event("loaded", versions={name: version(name) for name in packages}, threads=torch.get_num_threads())
    trainer.train()
    event("ended")


if __name__ == "__main__":
    main()
