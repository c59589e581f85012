"""Benchmark of the trainer: tokens per second against a plain peft + transformers loop, on one batch and one core.

    python -m bench.trainer --in-image            on CPUs, inside the trainer's image, which has torch
    python -m bench.trainer                       on CPUs, with this Python's torch
    python -m bench.trainer --device cuda         on a GPU: MFU and peak memory of a Qwen3-0.6B-shaped model

On CPUs there are two models (0.45 M and 28 M parameters, random weights) and texts of very uneven length, as in the
benchmark `trl --task uneven`. Three variants alternate, and each round starts with a different one: the trainer, the
plain loop, and the plain loop with samples sorted by length, which needs little padding. Only the samples' tokens
count; padding does not. A third part opens and activates adapter slots (see `trainer_slots`).
"""

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine_load, trainer_image
from bench.repetitions import middle, paired_ratios
from bench.report import Result, at_least, at_most, machine, record

MINUTES = 6
"""Expected minutes on one core."""
REPEATS = {"tiny": 7, "28m": 3}
PARTS = (*REPEATS, "slots")
WAYS = ("packed", "plain", "sorted")
"""Variants of a step on CPUs."""


@dataclass(frozen=True)
class Load:
    """Batch of one step on a GPU, with its targets."""

    name: str
    tokens: int
    """Number of tokens in the batch of one slot."""
    many: bool = False
    """True for packed samples of 256 to 4,096 tokens, instead of one sequence."""
    slots: int = 1
    """Number of runs that make a step each, one after another."""
    mfu: float | None = None
    gib: float | None = None

    @property
    def batch(self) -> str:
        """Description of the batch for a table."""
        kind = (
            f"{self.tokens} tokens in samples of 256 to 4096" if self.many else f"one sequence of {self.tokens} tokens"
        )
        return f"{kind}, {self.slots} slots in turn" if self.slots > 1 else kind


LOADS = (
    Load("16k", 16384, mfu=10.9, gib=5.1),
    Load("65k", 65536, mfu=25.2, gib=11.5),
    Load("16k, packed", 16384, many=True, mfu=10.6),
    Load("65k, packed", 65536, many=True),
    Load("16k, 4 slots", 16384, many=True, slots=4),
    Load("65k, 4 slots", 65536, many=True, slots=4),
)
"""Loads and their targets. The targets of MFU and memory are prime-rl's figures with LoRA rank 16 on an H100 (January
2026). The target for packed samples corresponds to 31,000 tokens/s on an H200.
"""


def main() -> int:
    """Run the benchmark. Returns 0 if everything that this machine can measure was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.trainer",
        description=(__doc__ or "").splitlines()[0],
        epilog=f"Expected minutes: {MINUTES} on one core; 3 on a GPU.",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    trainer_image.add_options(parser)
    parser.add_argument("--repeats", type=int, help=f"timed steps of each variant (default {REPEATS})")
    parser.add_argument("--model", choices=PARTS, action="append", help="CPU: only this model; repeatable")
    machine_load.add_option(parser)
    args = parser.parse_args()
    if not args.emit:
        machine_load.require_idle(args.busy)
    if args.in_image:
        return trainer_image.run_in_image("trainer", "bench.trainer", sys.argv[1:])

    def out(result: Result) -> None:
        if args.emit:
            trainer_image.emit(result)
        else:
            record("trainer", result)

    if args.device == "cuda":
        return on_gpu(out, args.repeats or 3)
    for name in args.model or PARTS:
        for result in slots_on_cpu() if name == "slots" else on_cpu(name, args.repeats or REPEATS[name]):
            out(result)
    return 0


def on_cpu(name: str, repeats: int) -> list[Result]:
    """Time the variants in turns on one pinned core."""
    from bench.trainer_batches import SHAPES, uneven_samples
    from bench.trainer_variants import TrainerVariants

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    shape = SHAPES[name]
    samples = uneven_samples(shape.samples, shape.vocabulary)
    tokens = sum(len(s.token_ids) for s in samples)
    with tempfile.TemporaryDirectory() as folder:
        variants = TrainerVariants(shape.save(Path(folder)), "cpu", "float32", shape.budget)
        steps: list[dict[str, Any]] = []
        # The first step of each variant is a warm-up; its loss shows that all make the same update.
        losses = {way: variants.step(way, samples)["loss"] for way in WAYS}
        busy = []
        for repeat in range(repeats):
            busy.append(machine_load.settled_load())
            turn = repeat % len(WAYS)
            for way in WAYS[turn:] + WAYS[:turn]:
                found = variants.step(way, samples)
                steps.append({"way": way, "repeat": repeat, "tokens_per_second": tokens / found["seconds"], **found})
                print(f"{name} {way}: {tokens / found['seconds']:.0f} tokens/s", flush=True)
    versions = machine(packages=("torch", "transformers", "peft"))["versions"]
    return cpu_results(name, shape.title, tokens, steps, losses, busy, versions)


def slots_on_cpu() -> list[Result]:
    """Measure adapter slots on one pinned core."""
    from bench.trainer_batches import SHAPES
    from bench.trainer_slots import fairness_result, slot_results

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        deep, tiny = (SHAPES[name].save(Path(folder) / name) for name in ("deep", "tiny"))
        return [*slot_results(deep), fairness_result(tiny)]


def cpu_results(
    name: str,
    title: str,
    tokens: int,
    steps: Sequence[Mapping[str, Any]],
    losses: Mapping[str, float],
    cores_busy: Sequence[float],
    versions: Mapping[str, str],
) -> list[Result]:
    """Return tokens per second relative to both plain loops, repetition by repetition."""
    rates = {way: median(m["tokens_per_second"] for m in steps if m["way"] == way) for way in WAYS}
    story = ", ".join(f"{way} {rate:.0f}" for way, rate in rates.items())
    padding = {way: next(m["padding"] for m in steps if m["way"] == way) for way in WAYS}
    common: dict[str, Any] = {
        "versions": versions,
        "cores_busy": cores_busy,
        "figures": {"tokens_per_second": rates, "padding": padding, "first_loss": losses, "tokens": tokens},
    }
    what = f"trainer's tokens/s against peft + transformers, {title}"

    def row(title: str, theirs: str, unit: str) -> Result:
        sides = [{m["repeat"]: m["tokens_per_second"] for m in steps if m["way"] == way} for way in ("packed", theirs)]
        found = paired_ratios(*sides)
        return Result(
            name=f"{name}, {title}",
            what=f"{what}, packing on",
            ratio=middle(found),
            aim=at_least(1.0),
            unit=unit,
            samples=[m for m in steps if m["way"] in ("packed", theirs)],
            notes=[f"tokens per second on one core: {story}"] if title == "packed" else [],
            repetitions=found,
            **common,
        )

    return [
        row("packed", "plain", "x the plain loop"),
        row("packed, sorted loop", "sorted", "x the loop sorted by length"),
    ]


def on_gpu(out: Callable[[Result], None], repeats: int) -> int:
    """Report MFU and peak memory of each load. Without a GPU, print the reason and leave the rows unchanged."""
    try:
        import torch
    except ImportError:
        print("not run: no torch")
        return 0
    if not torch.cuda.is_available():
        print("not run: no GPU")
        return 0
    from bench.trainer_batches import SHAPES

    with tempfile.TemporaryDirectory() as folder:
        SHAPES["0.6b"].save(Path(folder), max(load.tokens for load in LOADS), torch.bfloat16)
        for load in LOADS:
            for result in gpu_results(load, gpu_steps(load, Path(folder), repeats)):
                out(result)
    return 0


def gpu_results(load: Load, found: Mapping[str, Any]) -> list[Result]:
    """Return MFU and peak memory from the findings of `gpu_steps`."""
    common: dict[str, Any] = {
        "samples": found.get("samples", ()),
        "notes": [found["error"]] if "error" in found else list(found["notes"]),
        "versions": found.get("versions", {}),
        "figures": found.get("figures", {}),
        "cores_busy": found.get("cores_busy", ()),
    }
    mfus, peaks = ([m[key] for m in common["samples"] if key in m] for key in ("mfu", "peak_gib"))
    model = f"Qwen3-0.6B shape, LoRA r16, bf16, {load.batch}"
    mfu, gib = (at_least(load.mfu) if load.mfu else None), (at_most(load.gib) if load.gib else None)
    return [
        Result(f"MFU, {load.name}", f"MFU of {model}", found.get("mfu"), mfu, "%", repetitions=mfus, **common),
        Result(
            f"memory, {load.name}", f"peak memory of {model}", found.get("gib"), gib, "GiB", repetitions=peaks, **common
        ),
    ]


def gpu_steps(load: Load, folder: Path, repeats: int) -> Mapping[str, Any]:
    """Time train_step on the model in `folder`. Running out of memory counts as a result."""
    import torch
    from rlrun.service.errors import ProblemError

    from bench.trainer_batches import SHAPES, long_sample, short_samples
    from bench.trainer_variants import TrainerVariants

    make = short_samples if load.many else lambda *arguments: [long_sample(*arguments)]
    batches = [make(load.tokens, SHAPES["0.6b"].vocabulary, slot) for slot in range(load.slots)]
    versions = machine(packages=("torch", "transformers", "peft", "flash-attn"))["versions"]
    versions |= {"gpu": torch.cuda.get_device_name(0)}
    busy = machine_load.settled_load()
    torch.cuda.reset_peak_memory_stats()
    variants = TrainerVariants(folder, "cuda", "bfloat16", load.tokens, plain=False, slots=load.slots)
    attention = variants.attention
    try:
        variants.step("packed", batches[0])
        steps = [variants.step("packed", batch, slot) for _ in range(repeats) for slot, batch in enumerate(batches)]
    except ProblemError as error:
        return {"error": f"{load.tokens} tokens: {error.problem.message}", "versions": versions}
    finally:
        del variants
        gc.collect()
        torch.cuda.empty_cache()
    seconds = median(m["seconds"] for m in steps)
    return {
        "mfu": median(m["mfu"] for m in steps) if all("mfu" in m for m in steps) else None,
        "gib": max(m["peak_gib"] for m in steps),
        "samples": steps,
        "notes": [
            f"{load.tokens / seconds:.0f} tokens/s, {attention} attention; the anchor was measured on an H100",
            "MFU as in rlrun_trainer.optimization.mfu: 6 FLOP per weight outside of the embeddings, causal attention",
        ],
        "versions": versions,
        "figures": {"tokens_per_second": load.tokens / seconds},
        "cores_busy": [busy],
    }


if __name__ == "__main__":
    sys.exit(main())
