"""Cost of opening and activating adapter slots on a model with 196 linear layers, beside peft's own layers."""

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from peft import LoraConfig, inject_adapter_in_model
from rlrun_trainer.model.base_model import load_base
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.runtime.settings import TrainerSettings

from bench import machine_load
from bench.report import Result, at_most, machine
from bench.trainer_batches import SHAPES
from bench.trainer_variants import ALPHA, RANK, TARGETS

SLOTS = 64
SLOTS_OF_PEFT = 8
"""Number of adapters that peft adds. Each costs it more than the last."""
SWITCHES = 32


def slot_results(folder: Path) -> list[Result]:
    """Open slots one after another, then activate them in turn. CPU milliseconds, on the model in `folder`."""
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
