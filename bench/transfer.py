"""Benchmark of checkpoint uploads and downloads against rclone, with the same server and files.

    python -m bench.transfer                       1 MB to 2 GB, on the local cluster's S3 (about 4 minutes)
    python -m bench.transfer --megabytes 1 64      only these sizes

Both sides transfer one folder, in turns: rclone with its defaults (four files at once, parts of a large file in
parallel), ours like the trainer. Ours also computes and verifies the SHA-256 of every file, which makes a checkpoint
`Ready`; rclone compares sizes and MD5 sums. rclone measures its own time, so the start of its process does not count.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store

from bench.report import Result, at_least, record
from demo.cluster import local_cluster
from demo.install import BUCKET, S3Access

MEGABYTE = 10**6
SIZES = (1, 16, 128, 512, 2048)
REPEATS = {1: 7, 16: 5, 128: 3, 512: 3, 2048: 1}
DIRECTIONS = ("upload", "download")
LARGE_SHARE = 0.9
"""Share of the largest file: a checkpoint has one file with weights and moments, and a few small ones."""
SMALL_FILES = 4
PLACE = S3Uri(BUCKET, "bench/transfer")


@dataclass(frozen=True)
class Timing:
    """Time of one transfer."""

    side: str
    direction: str
    megabytes: int
    repeat: int
    seconds: float


def main() -> int:
    """Run the benchmark. Returns 0 if both sides transferred all sizes."""
    parser = argparse.ArgumentParser(prog="python -m bench.transfer", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=SIZES, help=f"sizes of a checkpoint {SIZES}")
    parser.add_argument("--repeats", type=int, help=f"of each size (default {REPEATS})")
    args = parser.parse_args()
    ensure_rclone()
    _, s3 = local_cluster()
    store = s3.store()
    timings: list[Timing] = []
    with tempfile.TemporaryDirectory(prefix="rlrun-bench-") as folder:
        try:
            for megabytes in args.megabytes:
                for repeat in range(args.repeats or REPEATS.get(megabytes, 1)):
                    timings += one_round(Path(folder), s3, store, megabytes, repeat)
        finally:
            store.delete_prefix(PLACE)
    for result in results_of(timings):
        record("checkpoint", result)
    return 0


def ensure_rclone() -> None:
    """Install the Debian package if it is missing. Raises CalledProcessError."""
    if shutil.which("rclone"):
        return
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "rclone"], check=True, env=quiet)


def one_round(workspace: Path, s3: S3Access, store: Store, megabytes: int, repeat: int) -> list[Timing]:
    """Upload and download once with each side, in an order that alternates between repetitions."""
    source = workspace / "source"
    write_checkpoint(source, megabytes * MEGABYTE)
    timings: list[Timing] = []
    sides: list[tuple[str, Callable[[str, Path], float]]] = [
        ("ours", lambda direction, folder: _ours(store, direction, folder)),
        ("rclone", lambda direction, folder: _rclone(s3, direction, folder)),
    ]
    for side, move in sides[:: -1 if repeat % 2 else 1]:
        for direction in DIRECTIONS:
            folder = source if direction == "upload" else workspace / "target"
            # Otherwise the disk writes earlier data while the next transfer is timed.
            os.sync()
            seconds = move(direction, folder)
            timings.append(Timing(side, direction, megabytes, repeat, seconds))
            print(f"{side} {direction} {megabytes} MB: {seconds:.2f} s, {megabytes / seconds:.0f} MB/s", flush=True)
        shutil.rmtree(workspace / "target", ignore_errors=True)
        store.delete_prefix(PLACE)
    shutil.rmtree(source)
    return timings


def write_checkpoint(folder: Path, size: int) -> None:
    """Write a folder of `size` random bytes with the files of a checkpoint."""
    folder.mkdir()
    large = int(size * LARGE_SHARE)
    with (folder / "optimizer.safetensors").open("wb") as file:
        for start in range(0, large, MEGABYTE):
            file.write(os.urandom(min(MEGABYTE, large - start)))
    for index in range(SMALL_FILES):
        (folder / f"part-{index}.bin").write_bytes(os.urandom((size - large) // SMALL_FILES))


def _ours(store: Store, direction: str, folder: Path) -> float:
    began = time.perf_counter()
    if direction == "upload":
        store.upload_artifact(folder, PLACE / "ours", ArtifactKind.checkpoint)
    else:
        store.download(PLACE / "ours", folder)
    return time.perf_counter() - began


def _rclone(s3: S3Access, direction: str, folder: Path) -> float:
    remote = f"bench:{PLACE.bucket}/{PLACE.key}/rclone"
    ends = (str(folder), remote) if direction == "upload" else (remote, str(folder))
    # No statistics per second, one line of JSON at the end, and no configuration of this machine: the rclone of
    # Debian does not start if AWS_CA_BUNDLE is set.
    command = ["rclone", "copy", *ends, "--use-json-log", "--stats", "1h", "--stats-log-level", "NOTICE"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RCLONE_"))}
    done = subprocess.run(command, capture_output=True, text=True, env=plain | rclone_remote(s3), check=False)
    if done.returncode:
        raise RuntimeError(f"rclone failed:\n{done.stderr[-1000:]}")
    return elapsed(done.stderr)


def rclone_remote(s3: S3Access) -> dict[str, str]:
    """Return variables that define the remote `bench` of rclone."""
    return {
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_CONFIG_BENCH_TYPE": "s3",
        "RCLONE_CONFIG_BENCH_PROVIDER": "Other",
        "RCLONE_CONFIG_BENCH_ENDPOINT": s3.endpoint,
        "RCLONE_CONFIG_BENCH_ACCESS_KEY_ID": s3.access_key_id,
        "RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY": s3.secret_access_key,
    }


def elapsed(log: str) -> float:
    """Return the elapsed seconds from the JSON log of rclone. Raises ValueError if it has no statistics."""
    for line in reversed(log.splitlines()):
        entry: Mapping[str, Any] = json.loads(line) if line.startswith("{") else {}
        if "stats" in entry:
            return float(entry["stats"]["elapsedTime"])
    raise ValueError(f"rclone printed no statistics:\n{log[-1000:]}")


def results_of(timings: Sequence[Timing]) -> list[Result]:
    """Return rclone's seconds / ours per direction: the median over sizes of the median over repetitions."""
    rclone = rclone_version() if shutil.which("rclone") else "unknown"
    results = []
    for direction in DIRECTIONS:
        of_it = [t for t in timings if t.direction == direction]
        ratios, notes = {}, []
        for megabytes in sorted({t.megabytes for t in of_it}):
            seconds = {
                side: median(t.seconds for t in of_it if t.side == side and t.megabytes == megabytes)
                for side in ("ours", "rclone")
            }
            ratios[megabytes] = seconds["rclone"] / seconds["ours"]
            rates = ", ".join(f"{side} {megabytes / value:.0f} MB/s" for side, value in seconds.items())
            notes.append(f"{megabytes} MB: {rates}, {ratios[megabytes]:.2f} x")
        results.append(
            Result(
                name=direction,
                what=f"{direction} of a checkpoint: rclone's seconds / ours, median over {len(ratios)} sizes",
                ratio=median(ratios.values()) if ratios else None,
                aim=at_least(1.0),
                unit="x as fast",
                samples=[vars(t) for t in of_it],
                notes=["; ".join(notes)],
                figures={"ratios": {str(k): v for k, v in ratios.items()}},
                versions={"rclone": rclone},
            )
        )
    return results


def rclone_version() -> str:
    """Return the version of rclone."""
    text = subprocess.run(["rclone", "version"], capture_output=True, text=True, check=True).stdout
    return text.splitlines()[0].removeprefix("rclone ")


if __name__ == "__main__":
    sys.exit(main())
