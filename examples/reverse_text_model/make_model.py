"""Script that makes the example model: a character-level Qwen3 of 0.45 M parameters that copies or reverses a text.

It is trained from scratch on a mixture: a prompt is followed by the copied text (60 %) or the reversed text (40 %). The
model can do both and chooses at random, so reinforcement learning only has to teach the choice, which takes seconds.
The result is an ordinary Hugging Face folder that vLLM, transformers and peft load.

    python make_model.py --folder build/reverse-text-tiny                      a folder
    python make_model.py --upload s3://rlrun/models/rlrun/reverse-text-tiny    an artifact in S3, with a manifest

A prompt is `text <sep>`, an answer `text <eos>`. Characters other than a-z become spaces.
"""

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

sys.path.append(str(Path(__file__).resolve().parents[1] / "environments" / "reverse_text"))

from reverse_text_data import ALPHABET, draw_text, split_of

PAD, EOS, SEP = "<pad>", "<eos>", "<sep>"
PAD_ID, EOS_ID, SEP_ID = 0, 1, 2
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ message['content'] + ('<eos>' if message['role'] == 'assistant' else '<sep>') }}"
    "{%- endfor -%}"
)

MODEL_ID = "rlrun/reverse-text-tiny"
CONTEXT = 128
COPY_SHARE = 0.6
MIN_LENGTH, MAX_LENGTH = 4, 11
"""Range of lengths of the training texts, slightly wider than the range in the environment."""
BATCH = 64
PEAK_LEARNING_RATE = 4e-3


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character, three special tokens and a chat template of a single turn."""
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, SEP, *ALPHABET])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    core.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex("[^a-z ]"), " ")])
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=[SEP],
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(seed: int) -> Qwen3ForCausalLM:
    """Return the untrained model in float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(ALPHABET) + 3,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        # Short wavelengths: the source position is a few positions away, and training is twice as fast.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=None,
        eos_token_id=EOS_ID,
    )
    return Qwen3ForCausalLM(config).float()


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield token ids [BATCH, 2 * length + 2] of one length, and the start of the answers."""
    rng = random.Random(seed)
    ids = tokenizer.get_vocab()
    while True:
        length = rng.randint(MIN_LENGTH, MAX_LENGTH)
        rows: list[list[int]] = []
        while len(rows) < BATCH:
            text = draw_text(rng, length)
            if split_of(text) != "train":
                continue
            answer = text if rng.random() < COPY_SHARE else text[::-1]
            rows.append([*(ids[c] for c in text), SEP_ID, *(ids[c] for c in answer), EOS_ID])
        yield torch.tensor(rows), length + 1


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> float:
    """Train on the answers, supervised. Returns the mean loss (nats per token) of the last 20 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 40) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * s / steps)))
    )
    source = batches(tokenizer, seed)
    losses: list[float] = []
    started = time.monotonic()
    for step in range(1, steps + 1):
        ids, answer_at = next(source)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits[:, answer_at - 1 :].flatten(0, 1), ids[:, answer_at:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0 or step == steps:
            print(
                f"step {step}/{steps}  loss {sum(losses[-20:]) / 20:.3f}  {time.monotonic() - started:.0f} s",
                flush=True,
            )
    return sum(losses[-20:]) / len(losses[-20:])


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the stock Hugging Face files: config, generation config, weights, tokenizer with its chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = EOS_ID
    model.generation_config.pad_token_id = PAD_ID
    model.generation_config.bos_token_id = None
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    # transformers 5 writes the template to its own file; older readers expect it in tokenizer_config.json.
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = CHAT_TEMPLATE
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main() -> None:
    """Train, save and optionally upload the model."""
    parser = argparse.ArgumentParser(description="Make the example model that copies or reverses a text.")
    parser.add_argument("--folder", type=Path, help="where to write the model (default: a temporary folder)")
    parser.add_argument(
        "--steps", type=int, default=700, help="training steps (default 700: about a minute on one core)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="cores to use; the number changes rounding")
    parser.add_argument("--upload", metavar="S3_URI", help="also upload as an artifact with a manifest")
    args = parser.parse_args()
    if not args.folder and not args.upload:
        parser.error("no destination: pass --folder, --upload or both")

    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    model = build_model(args.seed)
    print(f"{MODEL_ID}: {sum(p.numel() for p in model.parameters()):,} parameters, {args.steps} steps", flush=True)
    loss = train(model, tokenizer, args.steps, args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        save(model, tokenizer, folder)
        print(f"final loss {loss:.4f}" + (f", saved in {folder}" if args.folder else ""), flush=True)
        if args.upload:
            upload(folder, args.upload, {"steps": args.steps, "seed": args.seed, "loss": loss})


def upload(folder: Path, uri: str, details: dict[str, object]) -> None:
    """Upload the folder to S3 as an artifact: files first, manifest last."""
    from rlrun.storage.layout import S3Uri
    from rlrun.storage.manifest import ArtifactKind
    from rlrun.storage.store import Store

    manifest = Store().upload_artifact(
        folder, S3Uri.parse(uri), kind=ArtifactKind.model, model=MODEL_ID, details=details
    )
    print(f"uploaded {uri}  {len(manifest.files)} files, {manifest.size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
