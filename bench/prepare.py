"""Preparation before anything is timed: TRL's virtual environment and the models, created once and cached.

python -m bench.prepare          about 3 minutes for TRL's environment and 5 for the middle-sized model, once each
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlrun.storage.manifest import ArtifactKind

from bench.tasks import MIDDLE, TINY, TaskModel
from demo.cluster import local_cluster
from demo.install import CACHE, EXAMPLES, ROOT, S3Access, ensure_model, install_chart, model_files

TRL_REQUIREMENTS = ROOT / "bench" / "trl-requirements.txt"
UNUSED = ("triton", "nvidia/cudnn/lib/libcudnn_*.so.9", "torch/lib/libtorch_cuda_linalg.so")
"""Paths below site-packages that CPUs never use, two gigabytes in all. They are omitted, as in
trainer_image/Dockerfile.
"""
MIDDLE_SCRIPT = ROOT / "bench" / "uneven-text-model" / "make_uneven_model.py"
SECONDS = 1800


def trl_python(cache: Path = CACHE) -> Path:
    """Return the Python of TRL's environment. Installs it once per version of the requirements, which takes minutes.
    Raises RuntimeError with pip's last lines if the installation fails.
    """
    digest = hashlib.sha256(TRL_REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache / "bench" / f"trl-{digest}"
    found, done = folder / "bin" / "python", folder / ".complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "trl.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return found
        print(f"installing TRL into {folder} (minutes, once)", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        # The list is complete; resolving the dependencies of torch would add the omitted packages again.
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-deps", "--no-compile"]
        _run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(TRL_REQUIREMENTS)])
        for packages in folder.glob("lib/python3*/site-packages"):
            for path in (path for pattern in UNUSED for path in packages.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        _run([str(found), "-c", "from trl import GRPOTrainer"])
        done.touch()
        return found


def folder_of(model: TaskModel) -> Path:
    """Return the Hugging Face folder of a model on this machine, creating it once per version of its scripts.

    Creating the middle-sized model takes five minutes. The example's model is downloaded from the cluster's S3. Raises
    RuntimeError with the last lines of the script's output if it fails.
    """
    texts = ROOT / "bench" / "uneven-text"
    made_from = [
        MIDDLE_SCRIPT,
        EXAMPLES / "reverse_text_model" / "make_model.py",
        texts / "uneven_text_data.py",
        texts / "reverse_text_data.py",
    ]
    files = made_from if model == MIDDLE else model_files()
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]
    folder = CACHE / "models" / f"{model.name}-{digest}"
    if folder.is_dir():
        return folder
    print(f"making {model.id} in {folder} (once)", flush=True)
    if model != MIDDLE:
        local_cluster()[1].store().download(model.uri, folder)
        return folder
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    variables = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    _run([str(trl_python()), str(MIDDLE_SCRIPT), "--folder", str(draft)], variables)
    draft.rename(folder)
    return folder


def ensure_in_s3(model: TaskModel, s3: S3Access) -> None:
    """Upload the model to the S3 of the cluster if it is missing."""
    if model.uri == TINY.uri:
        ensure_model(local_cluster()[0], s3, print)
        return
    folder, store = folder_of(model), s3.store()
    manifest = store.read_manifest(model.uri)
    if manifest is None or manifest.details.get("scripts") != folder.name:
        store.upload_artifact(folder, model.uri, ArtifactKind.model, model=model.id, details={"scripts": folder.name})


def _run(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv[:4])} ... failed:\n{(done.stdout + done.stderr)[-2000:]}")


def main() -> None:
    """Prepare everything that the cluster and TRL need."""
    parser = argparse.ArgumentParser(prog="python -m bench.prepare", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-cluster", action="store_true", help="only prepare what needs no cluster")
    args = parser.parse_args()
    print(f"TRL: {trl_python()}")
    print(f"{MIDDLE.id}: {folder_of(MIDDLE)}")
    if not args.no_cluster:
        kubectl, s3 = local_cluster()
        install_chart(kubectl, s3)
        for model in (TINY, MIDDLE):
            ensure_in_s3(model, s3)


if __name__ == "__main__":
    main()
