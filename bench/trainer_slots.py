"""Cost of opening and activating adapter slots on a model with 196 linear layers, compared with peft's own layers, and
the division of the device's time among runs that always have a step to make.
"""

import asyncio
import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from peft import LoraConfig, inject_adapter_in_model
from rlrun.api.model import Lora
from rlrun.protocol.trainer import SessionSpec
from rlrun_trainer.model.base_model import load_base
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor

from bench import machine_load
from bench.report import Result, at_least, at_most, machine
from bench.trainer_batches import SHAPES, uneven_samples
from bench.trainer_variants import ALPHA, RANK, TARGETS

SLOTS = 64
SLOTS_OF_PEFT = 8
"""Number of adapters that peft adds. Each further adapter takes peft longer."""
SWITCHES = 32
BATCHES = (2, 4, 8, 16, 32, 64, 128, 128)
"""Number of samples per step of each of eight runs. The largest step has 64 times as many samples as the smallest."""
SHARED_SECONDS = 30.0


def slot_results(folder: Path) -> list[Result]:
    """Open slots one after another, then activate them in turn, on the model in `folder`. Returns the CPU milliseconds
    of both.
    """
    busy = machine_load.settled_load()
    settings = TrainerSettings(model_dir=folder, slots=SLOTS, device="cpu", dtype="float32", threads=1)
    base = load_base(settings)
    theirs = copy.deepcopy(base.model)
    shape = AdapterShape(RANK, ALPHA, TARGETS)
    slots: list[Any] = []
    opened = _timed(lambda n: slots.append(base.open(f"run{n}", "bench/model", shape, n)), SLOTS)
    activated = _timed(lambda n: base.activate(slots[n % SLOTS]), SWITCHES)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS))
    added = _timed(lambda n: inject_adapter_in_model(config, theirs, f"run{n}"), SLOTS_OF_PEFT)
    theirs._hf_peft_config_loaded = True
    switched = _timed(lambda n: theirs.set_adapter(f"run{n % SLOTS_OF_PEFT}"), SWITCHES)
    return [
        _result("open", opened, added, 20.0, busy),
        _result("activate", activated, switched, 0.5, busy),
    ]


def fairness_result(folder: Path) -> Result:
    """Return Jain's index of the device seconds of eight runs, on the model in `folder`: 1 if all are equal, 1/8 if one
    run has all (Jain, Chiu and Hawe, 1984).
    """
    busy = machine_load.settled_load()
    settings = TrainerSettings(model_dir=folder, slots=len(BATCHES), device="cpu", dtype="float32", threads=1)
    seconds = asyncio.run(_share(CollectiveExecutor(load_base(settings))))
    index = sum(seconds) ** 2 / (len(seconds) * sum(value**2 for value in seconds))
    return Result(
        "slots, fairness",
        f"Jain's index of device seconds: {len(BATCHES)} runs that always have a step to make, of "
        f"{BATCHES[0]} to {BATCHES[-1]} samples, {SHAPES['tiny'].title.partition(',')[0]}",
        index,
        at_least(0.98),
        "of 1",
        samples=[{"samples": size, "seconds": value} for size, value in zip(BATCHES, seconds, strict=True)],
        repetitions=[index],
        cores_busy=[busy],
    )


async def _share(backend: CollectiveExecutor) -> list[float]:
    """Return the device seconds of each run while all make steps for SHARED_SECONDS."""
    compute = Compute()
    batches = {f"run{n}": uneven_samples(size, SHAPES["tiny"].vocabulary, n) for n, size in enumerate(BATCHES)}

    async def run(name: str) -> None:
        spec = SessionSpec(
            run_uri="s3://bench/run",
            run_name=name,
            run_uid=name,
            namespace="bench",
            model="bench/model",
            lora=Lora(rank=RANK, target_modules=list(TARGETS)),
            lora_alpha=ALPHA,
            learning_rate=1e-3,
            max_steps=1_000_000,
            seq_len=128,
            micro_batch_tokens=512,
        )
        await compute.run(name, backend.open_slot, name, spec)
        while True:
            await compute.run_units(name, backend.train, name, spec, batches[name], 0)

    steps = [asyncio.create_task(run(name)) for name in batches]
    await asyncio.sleep(SHARED_SECONDS)
    seconds = [compute.seconds_of(name) for name in batches]
    for step in steps:
        step.cancel()
    compute.close()
    await asyncio.gather(*steps, return_exceptions=True)
    return seconds


def _timed(call: Callable[[int], object], times: int) -> list[float]:
    spent = []
    for number in range(times):
        started = time.process_time()
        call(number)
        spent.append(1000 * (time.process_time() - started))
    return spent


def _result(what: str, ours: Sequence[float], theirs: Sequence[float], limit: float, busy: float) -> Result:
    return Result(
        f"slots, {what}",
        f"{what} one of {SLOTS} slots of rank {RANK}, {SHAPES['deep'].title}",
        median(ours),
        at_most(limit),
        "ms of CPU",
        samples=[{"ms": value} for value in ours],
        notes=[f"peft with {SLOTS_OF_PEFT} adapters: {median(theirs):.3g} ms"],
        figures={"peft_ms": median(theirs)},
        versions=machine(packages=("torch", "transformers", "peft"))["versions"],
        repetitions=list(ours),
        cores_busy=[busy],
    )
