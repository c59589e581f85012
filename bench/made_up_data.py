"""Artificial rows in place of datasets that environments download: a module that Python imports at startup.

`bench.public_packages` copies this file into the site-packages of its interpreters, with a line `import made_up_data`
in a .pth file. It is active in processes with the variable MADE_UP_DATA, a JSON file with the rows of each dataset by
name, and the contents of files on the Hugging Face hub by name. It is not part of the product.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "MADE_UP_DATA"
SPLITS = ("train", "validation", "test", "dev")
ROWS = 8
"""Number of rows of each dataset. The rows of the file are repeated."""


class _Loader(importlib.abc.Loader):
    """Loader that runs a module with the module's own loader, and then replaces the functions that download data."""

    def __init__(self, loader: importlib.abc.Loader, data: dict[str, Any]) -> None:
        self._loader, self._data = loader, data

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__name__ == "datasets":
            _replace_data_sets(module, self._data)
        else:
            _replace_files(module, self._data)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, data: dict[str, Any]) -> None:
        self._data, self._is_searching = data, False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in ("datasets", "huggingface_hub") or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._data)
        return spec


def _replace_data_sets(module: Any, data: dict[str, Any]) -> None:
    original = module.load_dataset

    def load_dataset(path: str, name: str | None = None, *args: Any, split: Any = None, **options: Any) -> Any:
        rows = data.get("rows", {}).get(path)
        if rows is None:
            return original(path, name, *args, split=split, **options)
        made = module.Dataset.from_list([rows[number % len(rows)] for number in range(ROWS)])
        return made if split is not None else module.DatasetDict(dict.fromkeys(SPLITS, made))

    module.load_dataset = load_dataset


def _replace_files(module: Any, data: dict[str, Any]) -> None:
    original = module.hf_hub_download

    def hf_hub_download(repo_id: str, filename: str, **options: Any) -> str:
        text = data.get("files", {}).get(filename)
        if text is None:
            return str(original(repo_id, filename, **options))
        made = Path(tempfile.mkdtemp()) / Path(filename).name
        made.write_text(text, encoding="utf-8")
        return str(made)

    module.hf_hub_download = hf_hub_download


if VARIABLE in os.environ:
    sys.meta_path.insert(0, _Finder(json.loads(Path(os.environ[VARIABLE]).read_text(encoding="utf-8"))))
