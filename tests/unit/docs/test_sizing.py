"""The tables of docs/sizing.md are what `rlrun models add` computes."""

import json
import re

from rlrun.api.model import Trainer
from rlrun_cli.inputs.model_config import Architecture, architecture
from rlrun_cli.inputs.model_sizing import Job, sequences, size_architecture, trainer_bytes

from tests.support.model_configs import MODELS
from tests.support.source_tree import ROOT

PAGE = (ROOT / "docs/sizing.md").read_text()
RANK = 16
GIB = 2**30


def parsed(name: str) -> Architecture:
    found = architecture(MODELS[name])
    assert found is not None
    return found


def job(gpu_memory: float, seq_len: int, *, full: bool = False) -> Job:
    return Job(gpu_memory, seq_len, RANK, Trainer().micro_batch_tokens, full)


def cell(model: Architecture, wanted: Job) -> str:
    found = size_architecture(model, wanted)
    if not found.fits:
        return "-"
    return f"{found.trainer_gpus} + {found.engine_gpus}, {sequences(model, wanted, found.engine_gpus)}"


def table() -> str:
    lines = ["| model | `seqLen` | 24 GB | 80 GB | 141 GB | full fine-tuning, 80 GB |", "|---|---|---|---|---|---|"]
    for name in MODELS:
        for seq_len in (4096, 8192, 32768):
            jobs = [*(job(memory, seq_len) for memory in (24, 80, 141)), job(80, seq_len, full=True)]
            cells = [name, str(seq_len), *(cell(parsed(name), each) for each in jobs)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_is_computed_as_models_add_does() -> None:
    (shown,) = re.findall(r"^\| model \| `seqLen`.*?(?=\n\n)", PAGE, re.MULTILINE | re.DOTALL)
    assert shown == table()


def test_the_sizes_give_the_number_of_parameters_in_the_name() -> None:
    for name in MODELS:
        billions = float(re.findall(r"-([\d.]+)B", name)[0])
        assert abs(parsed(name).parameters / 1e9 - billions) <= 0.06 * billions, name


def test_the_estimates_beside_measured_memory_are_those_of_the_code() -> None:
    results = map(json.loads, (ROOT / "docs/bench/trainer.jsonl").read_text().splitlines())
    measured = {entry["name"]: entry["ratio"] for entry in results}
    for tokens, name in ((16384, "memory, 16k"), (65536, "memory, 65k")):
        estimate = trainer_bytes(parsed("Qwen3-0.6B"), job(141, tokens), 1) / GIB
        assert f"| {tokens} | {estimate:.1f} GiB | {measured[name]:.1f} GiB |" in PAGE
