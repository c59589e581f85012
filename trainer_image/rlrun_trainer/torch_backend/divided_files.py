"""safetensors files that all processes of the first node write, each with the tensors of some layers.

No process holds a copy of the whole model, and the files are written at the same time. Names and index follow Hugging
Face: model-00001-of-00002.safetensors and model.safetensors.index.json. torch.distributed.checkpoint is not used,
because its processes exchange pickles.
"""

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Self

import torch
from rlrun.storage.layout import MODEL_WEIGHTS, NUMBERED
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rlrun_trainer.artifacts.artifact_files import TempFolder, writing_to
from rlrun_trainer.artifacts.checkpoint_facts import mismatch
from rlrun_trainer.artifacts.checkpoint_names import INDEX
from rlrun_trainer.runtime.process_group import ProcessGroup, full_tensor

LAYER = re.compile(r".*?\.\d+(?=\.)")

Tensors = Mapping[str, torch.Tensor]


class DividedFolder:
    """Temporary folder of the first process, to which all processes of its node write. All processes must create it.

    Raises ProblemError on all processes if the disk is full. As a context, it removes the folder after an exception.
    """

    def __init__(self, world: ProcessGroup, scratch: Path | None) -> None:
        self._world = world
        self.folder: TempFolder | None = None
        """Folder to upload and remove, or None if this is not the first process."""
        with world.raise_together(in_step=False):
            self.folder = TempFolder(scratch) if world.is_leader else None
        name = world.broadcast_bytes(self.folder.path.name.encode() if self.folder else b"").decode()
        if name != Path(name).name:
            raise RuntimeError(f"The first process sent {name[:100]!r} instead of a folder's name.")
        self._path = (scratch or Path(tempfile.gettempdir())) / name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.folder is not None:
            self.folder.remove()

    def gather(
        self,
        tensors: Tensors,
        dtypes: Mapping[str, torch.dtype] | None = None,
        as_stored: Callable[[dict[str, torch.Tensor]], Tensors] = dict,
    ) -> dict[str, torch.Tensor]:
        """Return the tensors that this process writes, in full size and on the CPU. All processes must call it.

        Tensors named in `dtypes` are converted. `as_stored` is called with the tensors of one layer at a time, and
        returns them by their names in the file.
        """
        mine: dict[str, torch.Tensor] = {}
        writers = divide({name: tensor.numel() for name, tensor in tensors.items()}, self._world.local_size)
        for _, names in groupby(sorted(tensors, key=_layer), _layer):
            layer = {}
            for name in names:
                # Convert first, so that fewer bytes are sent.
                whole = full_tensor(tensors[name].detach().to((dtypes or {}).get(name)))
                if writers[name] == self._world.rank:
                    layer[name] = whole.cpu().contiguous()
            mine |= as_stored(layer) if layer else {}
        return mine

    def write(self, file: str, tensors: Tensors) -> None:
        """Write the tensors of all processes as `file`, or as numbered files. All processes must call it."""
        world = self._world
        path = self._path / file
        if world.local_size > 1:
            path = path.with_stem(f"{path.stem}-{world.rank + 1:05d}-of-{world.local_size:05d}")
        with world.raise_together(in_step=False):
            if world.rank < world.local_size:
                with writing_to(self._path, SafetensorError):
                    save_file(dict(tensors), path, metadata={"format": "pt"})


class StoredTensors:
    """Tensors of `file` in a folder, or of the numbered files that were written in its place. Raises ProblemError if a
    file is missing, and SafetensorError if one is damaged.
    """

    def __init__(self, folder: Path, file: str) -> None:
        paths = paths_of(folder, file)
        count = NUMBERED.search(paths[0].name) if paths else None
        if len(paths) != (int(count[1]) if count else 1):
            raise mismatch(f"The checkpoint has no {file}, or not all of its parts. Use a complete checkpoint.")
        files = [safe_open(path, "pt") for path in paths]
        self._files = {name: one for one in files for name in one.keys()}  # noqa: SIM118

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._files)

    def read(self, name: str) -> torch.Tensor:
        """Return the tensor, on the CPU."""
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor


def divide(sizes: Mapping[str, int], processes: int) -> dict[str, int]:
    """Return the rank of the process that writes each tensor. All processes write about the same number of elements.

    One process writes all tensors of a layer, and one process writes all tensors outside of layers, because
    transformers may merge tensors when it names them as in the files.
    """
    layers: dict[str, int] = {}
    for name, size in sizes.items():
        layers[_layer(name)] = layers.get(_layer(name), 0) + size
    written = [0] * processes
    writers: dict[str, int] = {}
    for layer in sorted(layers, key=lambda one: (-layers[one], one)):
        writers[layer] = written.index(min(written))
        written[writers[layer]] += layers[layer]
    return {name: writers[_layer(name)] for name in sizes}


def _layer(name: str) -> str:
    found = LAYER.match(name)
    return found[0] if found else ""


def write_index(folder: Path) -> None:
    """Write the index with which transformers finds the weights of a model, if they are in numbered files,
    and remove it otherwise.

    Raises SafetensorError if a file is damaged.
    """
    paths = paths_of(folder, MODEL_WEIGHTS)
    if paths == [folder / MODEL_WEIGHTS]:
        (folder / INDEX).unlink(missing_ok=True)
        return
    weights = {name: path.name for path in paths for name in names_in(path)}
    index = {"metadata": {"total_size": sum(path.stat().st_size for path in paths)}, "weight_map": weights}
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")


def paths_of(folder: Path, file: str) -> list[Path]:
    """Return the path of `file` in the folder, or the paths of the numbered files in its place, if any."""
    path = folder / file
    return [path] if path.is_file() else sorted(folder.glob(f"{path.stem}-*-of-*{path.suffix}"))


def names_in(path: Path) -> list[str]:
    """Return the names of the tensors in a file."""
    with safe_open(path, "pt") as file:
        return list(file.keys())
