"""Comparison of an adapter with its base model on held-out texts, with stock transformers and peft.

    python evaluate_adapter.py --model s3://rlrun/models/rlrun/reverse-text-tiny \\
        --adapter s3://rlrun/default/<run-uid>/adapters/step-000040

The last line is JSON: mean rewards of base model and adapter, greedy and sampled at temperature 1, on the eval split of
reverse-text, which is not used in training. Folders are accepted in place of s3:// URIs.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.append(str(Path(__file__).resolve().parent / "environments" / "reverse_text"))

from reverse_text_data import dataset, similarity

MAX_NEW_TOKENS = 24
SAMPLES = 4
"""Number of answers per text at temperature 1. There is one greedy answer."""


def answers(model: Any, tokenizer: Any, texts: list[str], sample: bool) -> list[str]:
    """Return one answer per text. Texts of equal length form a batch, so that nothing is padded."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, text in enumerate(texts):
        by_length[len(text)].append(i)
    found = [""] * len(texts)
    for _, places in sorted(by_length.items()):
        chats = [[{"role": "user", "content": texts[i]}] for i in places]
        prompts = tokenizer.apply_chat_template(chats, tokenize=False)
        batch = tokenizer(prompts, return_tensors="pt", add_special_tokens=False)
        mode = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
        with torch.no_grad():
            output = model.generate(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, max_new_tokens=MAX_NEW_TOKENS, **mode
            )
        for i, row in zip(places, output[:, batch.input_ids.shape[1] :], strict=True):
            found[i] = tokenizer.decode(row, skip_special_tokens=True)
    return found


def mean_reward(model: Any, tokenizer: Any, texts: list[str], sample: bool, seed: int) -> float:
    """Return the mean similarity to the reversed texts. The same seed samples the same answers."""
    torch.manual_seed(seed)
    prompts = texts * SAMPLES if sample else texts
    rewards = [
        similarity(answer, text)
        for answer, text in zip(answers(model, tokenizer, prompts, sample), prompts, strict=True)
    ]
    return sum(rewards) / len(rewards)


def local(source: str, downloads: Path, name: str) -> Path:
    """Return `source` if it is a local folder. Otherwise, download and verify the artifact, and return its folder."""
    if not source.startswith("s3://"):
        return Path(source)
    from rlrun.storage.layout import S3Uri
    from rlrun.storage.store import Store

    Store().download(S3Uri.parse(source), downloads / name)
    return downloads / name


def main() -> None:
    """Evaluate both models and print the result."""
    parser = argparse.ArgumentParser(description="Compare an adapter with its base model on held-out texts.")
    parser.add_argument("--model", required=True, help="base model: s3:// uri or folder")
    parser.add_argument("--adapter", required=True, help="adapter artifact: s3:// uri or folder")
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--min-length", type=int, default=5)
    parser.add_argument("--max-length", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    texts = dataset(args.examples, args.seed, "eval", args.min_length, args.max_length)
    result: dict[str, float] = {"examples": len(texts)}
    with tempfile.TemporaryDirectory() as downloads:
        base_folder = local(args.model, Path(downloads), "base")
        adapter_folder = local(args.adapter, Path(downloads), "adapter")
        tokenizer = AutoTokenizer.from_pretrained(base_folder)
        model = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32).eval()
        result["base_reward_greedy"] = mean_reward(model, tokenizer, texts, False, args.seed)
        result["base_reward_sampled"] = mean_reward(model, tokenizer, texts, True, args.seed)
        adapted = PeftModel.from_pretrained(model, adapter_folder).eval()
        result["adapter_reward_greedy"] = mean_reward(adapted, tokenizer, texts, False, args.seed)
        result["adapter_reward_sampled"] = mean_reward(adapted, tokenizer, texts, True, args.seed)
    print(json.dumps({key: round(value, 4) for key, value in result.items()}))


if __name__ == "__main__":
    main()
