"""Test of verifiers' public environments on the local cluster: whether each loads and rolls out eight groups.

    make up && python -m bench.public_environments CLONE

Each environment is pushed unmodified with `rlrun env push` and trained for one step of eight groups by the stub trainer
and the stub engine, whose policy writes random letters; a batch has eight groups unless its episodes have several
rollouts. Only data that needs a network is replaced: calls of `load_dataset` read ROWS, and nltk finds NLTK_DATA.
Writes docs/bench/environments/public.json, even if an environment fails.
"""

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from rlrun.storage.layout import RunLayout
from rlrun.storage.samples.record import SampleRecord, SampleSplit
from rlrun_cli.remote.run_data.stored_rollouts import open_step

from demo.cluster import local_cluster
from demo.install import BUCKET, install_platform, let_users_in, rlrun
from demo.kubectl import Kubectl, Object
from demo.watch import RunFailed, follow

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "bench" / "environments" / "public.json"
OWNER = "public"
MODEL = "rlrun/stub-long"
GROUPS = 8
ROLLOUTS = 2
SECONDS = 600.0
NULL = {"harness": {"id": "null"}}
ENVIRONMENTS: Mapping[str, Mapping[str, Any]] = {
    "reverse_text": NULL,
    "gsm8k": NULL,
    "kuhn_poker": {},
    "code_golf": {},
    "scratchpad": {},
    "wordle": NULL,
    "glossary": NULL,
    "color_codeword": {},
    "proposer_solver": {},
}
"""Folders in the repository's environments, and the settings of their runs."""
WORDS = ("crane", "house", "plant", "stone", "table", "water")
_TAGGER = "nltk_data/taggers/averaged_perceptron_tagger_eng/averaged_perceptron_tagger_eng"
NLTK_DATA: Mapping[str, str] = {
    "nltk_data/corpora/words/en": "\n".join(WORDS),
    "nltk_data/corpora/words/en-basic": "\n".join(WORDS),
    f"{_TAGGER}.weights.json": "{}",
    f"{_TAGGER}.tagdict.json": json.dumps(dict.fromkeys(WORDS, "NN")),
    f"{_TAGGER}.classes.json": '["NN"]',
}
"""Data that textarena makes nltk download when wordle loads, with few words."""
ROWS: Mapping[str, list[dict[str, str]]] = {
    "reverse_text": [{"prompt": f"word {number}"} for number in range(16)],
    "gsm8k": [{"question": f"{number} + 1 = ?", "answer": f"One more.\n#### {number + 1}"} for number in range(16)],
}


def main() -> None:
    """Run the environments one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="clone of verifiers' repository")
    parser.add_argument("environments", nargs="*", metavar="environment", help="folders in environments (default: all)")
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "-C", arguments.clone, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    kubectl, s3 = local_cluster()
    install_platform(kubectl, s3)
    kubectl.apply(_model())
    let_users_in(kubectl, OWNER)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results: dict[str, Any] = known["environments"] if known.get("verifiers") == commit else {}
    for name in arguments.environments or ENVIRONMENTS:
        print(f"--- {name}", flush=True)
        began = time.monotonic()
        try:
            result = _train(kubectl, s3.store(), name, arguments.clone / "environments" / name)
        except (RunFailed, RuntimeError) as error:
            # The first error of the rollouts is more informative than the state of the run.
            result = {"failure": (str(error).rpartition("first: ")[2] or str(error))[:300]}
        results[name] = {**result, "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps(results[name]), flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(result)}" for name, result in results.items())
        head = f'"verifiers": {json.dumps(commit)}, "groups": {GROUPS}, "environments"'
        RESULTS.write_text(f"{{{head}: {{\n{lines}\n}}}}\n")


def _train(kubectl: Kubectl, store: Any, name: str, folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary) / name
        shutil.copytree(folder, project)
        _replace_data(project / name, ROWS.get(name))
        if name == "wordle":
            _add_nltk_data(project / name)
        pushed = rlrun(kubectl, "env", "push", str(project), "-n", OWNER, "--owner", OWNER, "--force")
    run = _run(name)
    namespace = f"{OWNER}-{uuid.uuid4().hex[:6]}"
    run["metadata"]["namespace"] = namespace
    kubectl.ensure_namespace(namespace)
    kubectl.apply(run)
    try:
        done = follow(kubectl, run["metadata"]["name"], namespace, seconds=SECONDS)
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false")
    records = step_records(store, done, 1)
    return {
        "pushed": pushed.strip().splitlines(),
        "groups": len({record.group for record in records}),
        "rollouts": len(records),
        "agents": sorted({record.agent for record in records if record.agent}),
        "errors": sorted(
            {f"{record.error.reason}: {record.error.message}"[:300] for record in records if record.error}
        ),
        "rewards": sorted(
            {round(record.reward, 4) for record in records if not record.error and record.reward is not None}
        ),
    }


def _replace_data(package: Path, rows: list[dict[str, str]] | None) -> None:
    if rows is None:
        return
    (package / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for module in package.glob("*.py"):
        source = module.read_text()
        local = 'load_dataset("json", data_files=__file__.rpartition("/")[0] + "/rows.jsonl", split="train")'
        module.write_text(re.sub(r"(?<!import )load_dataset\([^)]*\)", local, source))


def _add_nltk_data(package: Path) -> None:
    for name, text in NLTK_DATA.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    module = package / "__init__.py"
    path = 'import nltk\n\nnltk.data.path.insert(0, __file__.rpartition("/")[0] + "/nltk_data")\n'
    module.write_text(path + module.read_text())


def _model() -> Object:
    model: Object = yaml.safe_load((ROOT / "tests" / "support" / "images" / "stub-model.yaml").read_text())
    model["metadata"] = {"name": MODEL.partition("/")[2]}
    # The stub's tokens are characters, and a harness has a system prompt.
    model["spec"] |= {"id": MODEL, "seqLen": 16384}
    return model


def _run(name: str) -> Object:
    run: Object = yaml.safe_load((ROOT / "examples" / "reverse-text.yaml").read_text())
    package = name.replace("_", "-")
    run["metadata"] = {"name": package}
    run["spec"] |= {
        "model": MODEL,
        "maxSteps": 1,
        "batchSize": GROUPS * ROLLOUTS,
        "rolloutsPerExample": ROLLOUTS,
        "oversamplingFactor": 1.0,
        "sampling": {"maxTokens": 16},
        "algorithm": {"filterZeroAdvantages": False},
        # Agents' programs and tool servers must fit into the memory of the local cluster's workers.
        "env": [{"id": f"{OWNER}/{package}", "maxConcurrent": ROLLOUTS, **ENVIRONMENTS.get(name, {})}],
        "infrastructure": {"computeSize": "M"},
    }
    return run


def step_records(store: Any, run: Object, step: int) -> list[SampleRecord]:
    """Return the records of the rollouts of one step."""
    layout = RunLayout.of(BUCKET, "", run["metadata"]["namespace"], run["metadata"]["uid"])
    stored = open_step(store, layout, step, SampleSplit.train, None)
    return [record for samples in stored for group in samples.index.groups for record in samples.records(group)]


if __name__ == "__main__":
    main()
