"""What the recipes of `tinker-cookbook` load from the Hugging Face hub, in a cache for programs that are offline."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store

from demo.install import MODEL_URI

MODEL = "Qwen/Qwen3.5-9B-Base"
"""Id of the model that the recipes `chat_sl`, `rl_basic` and `sl_basic` train by default."""
RL_MODEL = "Qwen/Qwen3.5-4B"
"""Id of the model that the tests of the recipe `math_rl` train."""
RL_MODEL_URI = S3Uri("rlrun", "models/rlrun/addition-chat")
"""Place of a model for chats (`addition_chat_model`)."""
COMMIT = "0" * 40
TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
TRAIN_ROWS = 6 * 256
"""Rows for six steps of the batch size that the recipe has by default."""
TEST_ROWS = 256
PROBLEMS = [
    {"question": f"A box has {count} pens. How many pens are in 3 boxes?", "answer": f"They are #### {3 * count}"}
    for count in range(2, 10)
]
"""One batch of the recipe `rl_basic`, which samples 16 answers to each."""
WORDS = ("red", "blue", "small", "large", "cold", "warm", "new", "old")


def make_hub_cache(folder: Path, store: Store) -> None:
    """Fill HF_HOME with the tokenizer of the example model under the name MODEL, and with short chats and problems
    under the names of the data sets that recipes load.
    """
    add_tokenizer(folder / "hub", MODEL, store, MODEL_URI)
    rows = {"train": chats(TRAIN_ROWS), "test": chats(TEST_ROWS)}
    add_dataset(folder / "datasets", "HuggingFaceH4/no_robots", rows)
    add_dataset(folder / "datasets", "openai/gsm8k", {"train": PROBLEMS, "test": PROBLEMS}, "main")
    _open_to_the_image(folder)


def upload_addition_chat_model(folder: Path, store: Store) -> None:
    """Upload the model that `addition_chat_model` has saved, unless it is there."""
    if store.read_manifest(RL_MODEL_URI) is None:
        store.upload_artifact(folder, RL_MODEL_URI, ArtifactKind.model, model=RL_MODEL)


def add_tokenizer(cache: Path, name: str, store: Store, uri: S3Uri) -> None:
    """Add a model's tokenizer to a cache of `huggingface_hub`."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    store.download(uri, snapshot)
    for file in snapshot.iterdir():
        if file.name not in TOKENIZER_FILES:
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    _open_to_the_image(repository)


def add_dataset(
    cache: Path, name: str, splits: Mapping[str, Sequence[Mapping[str, Any]]], configuration: str = "default"
) -> None:
    """Add Arrow files of a data set whose values are texts, and their description, to the cache of `datasets`."""
    owner, _, short = name.partition("/")
    folder = cache / f"{owner}___{short}" / configuration / "0.0.0" / COMMIT
    folder.mkdir(parents=True)
    described = {}
    for split, rows in splits.items():
        table = pa.Table.from_pylist([dict(row) for row in rows])
        with (
            pa.OSFile(str(folder / f"{short}-{split}.arrow"), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as to,
        ):
            to.write_table(table)
        described[split] = {"name": split, "num_examples": len(rows), "dataset_name": short}
    version = {"version_str": "0.0.0", "major": 0, "minor": 0, "patch": 0}
    names = {"builder_name": "parquet", "dataset_name": short, "config_name": configuration}
    info = {**names, "version": version, "features": _features_of(splits["train"][0]), "splits": described}
    (folder / "dataset_info.json").write_text(json.dumps(info))


def _features_of(value: Any) -> Any:
    """Return the description of a value: a text, or texts in lists and mappings."""
    if isinstance(value, Mapping):
        return {name: _features_of(item) for name, item in value.items()}
    return [_features_of(value[0])] if isinstance(value, list) else {"dtype": "string", "_type": "Value"}


def _open_to_the_image(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)  # the libraries write locks and indices beside the files


def chats(count: int) -> list[dict[str, Any]]:
    """Return conversations of fewer than 128 characters, no two alike."""
    found = []
    for number in range(count):
        words = [WORDS[(number // len(WORDS) ** place) % len(WORDS)] for place in range(4)]
        turns = [("user", f"say {' '.join(words)}"), ("assistant", " ".join(words))]
        found.append({"messages": [{"content": content, "role": role} for role, content in turns]})
    return found
