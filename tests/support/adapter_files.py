"""Names and shapes of the tensors in the trainer's adapters, for families of models, in the file EXPECTED.

The trainer's level compares what it writes with the file. The engine's level gives vLLM adapters with these tensors. So
both agree on names and shapes, though no image has both programs. Write the file again for a change of the trainer:

    python -m local_cluster.images run trainer -- python -m tests.support.adapter_files > build/adapter-tensors.yaml

and move it to its place. A line of the file has the tensors of one shape that differ only in the numbers of their layer
and expert: the name with `*` for the numbers, the shape, and the numbers.
"""

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.support.source_tree import ROOT

EXPECTED = ROOT / "tests" / "fixtures" / "adapter-tensors.yaml"
RANK = 4
WITH_EXPERTS = (
    "mixtral", "qwen3_moe", "olmoe", "phimoe", "gpt_oss", "glm4_moe", "ernie4_5_moe", "minimax_m2", "hy_v3",
    "deepseek_v3", "glm4_moe_lite", "qwen3_next",
)  # fmt: skip
"""Families whose routed experts have an adapter, too."""
WITHOUT_EXPERTS = (
    "llama", "qwen2", "qwen3", "mistral", "ministral3", "gemma2", "gemma3_text", "gemma4_text", "phi3", "olmo3", "glm4",
    "smollm3", "granite", "exaone4", "cohere2", "hunyuan_v1_dense", "nemotron", "seed_oss", "starcoder2", "llama4_text",
    "mistral4", "falcon_h1", "granitemoehybrid",
)  # fmt: skip
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")

Shapes = dict[str, list[int]]
"""Shapes of tensors by name."""


def expected() -> dict[str, Shapes]:
    """Return the tensors of each family in EXPECTED."""
    written = yaml.safe_load(EXPECTED.read_text())
    return {family: _expanded(lines) for family, lines in written.items()}


def _expanded(lines: Mapping[str, str]) -> Shapes:
    shapes: Shapes = {}
    for line, places in lines.items():
        pattern, shape = line.split()
        for place in places.split() or [""]:
            name = pattern.replace("*", "{}").format(*place.split("."))
            shapes[name] = [int(size) for size in shape.split("x")]
    return shapes


def collapsed(shapes: Mapping[str, list[int]]) -> dict[str, str]:
    """Return the lines of the file for these tensors."""
    lines: dict[str, str] = {}
    for name in sorted(shapes, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")]):
        line = f"{NUMBER.sub('*', name)} {'x'.join(map(str, shapes[name]))}"
        lines[line] = f"{lines.get(line, '')} {'.'.join(NUMBER.findall(name))}".lstrip()
    return lines


def written_by_trainer(family: str, folder: Path) -> Shapes:
    """Return the tensors of an adapter that the trainer writes for a model of the family, made in the folder."""
    from rlrun_trainer.model.peft_format import AdapterShape
    from safetensors.torch import load

    from tests.support import model_families, tiny_model

    base = tiny_model.load(model_families.save_family(folder, family), slots=1)
    targets = ("all-linear", *(["experts"] if family in WITH_EXPERTS else []))
    slot = base.open("a", tiny_model.MODEL, AdapterShape(RANK, float(RANK), targets), 0)
    return {name: list(tensor.shape) for name, tensor in load(slot.files()["adapter_model.safetensors"]).items()}


def main() -> None:
    found = {}
    for family in (*WITHOUT_EXPERTS, *WITH_EXPERTS):
        with tempfile.TemporaryDirectory() as folder:
            found[family] = collapsed(written_by_trainer(family, Path(folder)))
    yaml.safe_dump(found, sys.stdout, sort_keys=False, width=1000)


if __name__ == "__main__":
    main()
