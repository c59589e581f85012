"""Settings of the trainer: flags, with environment variables (RLRUN_<NAME>) as defaults."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of the trainer process. A run's settings are part of its session."""

    model_dir: Path = Path("/models/base")
    model: str | None = None
    """Model id that sessions must name. None accepts every id."""
    slots: int = 1
    device: str = "auto"
    """Device. `auto` is a GPU if `gpus` is positive or, if `gpus` is None, if there is one; otherwise the CPU."""
    gpus: int | None = None
    """Number of GPUs requested by the pod."""
    shard_size: int | None = None
    """Number of processes that divide the weights among them. None means all processes."""
    dtype: str = "auto"
    """Precision. `auto` is bfloat16 on CUDA and float32 on a CPU. Adapter weights are always float32."""
    attention: str = "auto"
    """Implementation of attention. `auto` is the first of these that works with the model: flash attention (on CUDA, if
    installed), sdpa, eager. On CUDA, `varlen` replaces sdpa or eager if it gives the same results.
    """
    gradient_checkpointing: str = "auto"
    """Gradient checkpointing: `on`, `off`, or `auto`, which is on with CUDA to save memory."""
    host: str | None = None
    """Address on which the trainer listens. None means all addresses, IPv4 and IPv6."""
    port: int = 8080
    threads: int = 1
    keep_policies: int = 8
    """Number of policy versions per run that are kept in S3."""
    upload_queue: int = 4
    """Maximum number of uploads per session, including the running one. Each holds a snapshot in scratch. One recovery
    copy may be queued in addition.
    """
    upload_bytes: int = 64 * 1024**3
    """Maximum total size in bytes of a session's snapshots that wait for upload. A single snapshot may be larger, and a
    recovery copy may be queued in addition.
    """
    upload_tries: int = 10
    """Number of failed attempts after which an upload is given up if its session is closed. While the session is open,
    errors from S3 are retried without limit.
    """
    shutdown_seconds: float = 25.0
    """Seconds for a last checkpoint and background uploads after SIGTERM."""
    recovery_seconds: float = 0.0
    """Device time of a run in seconds after which its state is saved in a recovery copy. 0 disables recovery copies."""
    scratch: Path | None = None
    """Folder for snapshots until they are uploaded. Emptied when the process starts.

    None keeps adapters in memory and models in the system's temporary folder.
    """
    order_path: Path | None = None
    """File with the TrainerOrder of a shared pool that applies until the operator sends a newer order.

    None trains a single run, which has the process's token, grant and settings.
    """
    deaths_file: Path | None = None
    """File that records crashes of a shared pool's trainer, in a folder that outlives the container. None disables the
    recording.
    """
    unit_seconds: float = 1800.0
    """Seconds after which a run's unit counts as hanging and ends the process of a shared pool's trainer. Half of the
    default `stallDeadlineSeconds`, so that no other run fails.
    """
    log_level: str = "INFO"


def cpu_threads(environ: Mapping[str, str], cgroup: Path = CGROUP_CPU_LIMIT) -> int:
    """Return the number of torch threads: RLRUN_THREADS if it is set, or else this process's share of the CPU limit.
    If there is no limit, the cores are shared instead.
    """
    if environ.get("RLRUN_THREADS"):
        return max(1, int(environ["RLRUN_THREADS"]))
    processes = max(1, int(environ.get("LOCAL_WORLD_SIZE", "1")))
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup.read_text().split()
    except (OSError, ValueError):
        return max(1, cores // processes)
    limit = cores if quota == "max" else min(cores, round(int(quota) / int(period)))
    return max(1, limit // processes)


def parse(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> TrainerSettings:
    """Parse a command line, with defaults from RLRUN_* variables. Exits with a usage message if a flag is invalid."""
    base = TrainerSettings()

    def default(name: str, fallback: object) -> str:
        return environ.get(f"RLRUN_{name.upper()}", "" if fallback is None else str(fallback))

    parser = argparse.ArgumentParser(
        prog="python -m rlrun_trainer", description="Serve one base model with K LoRA slots."
    )
    add = parser.add_argument
    add("--model-dir", type=Path, default=Path(default("model_dir", base.model_dir)), help="folder with the base model")
    add("--model", default=default("model", base.model) or None, help="model id that sessions must name")
    add("--slots", type=_positive, default=default("slots", base.slots), help="adapter slots (concurrent runs)")
    add("--device", choices=("auto", "cpu", "cuda"), default=default("device", base.device))
    add("--gpus", type=int, default=default("gpus", base.gpus) or None, help="required number of GPUs (default: any)")
    add(
        "--shard-size",
        type=_positive,
        default=default("shard_size", base.shard_size) or None,
        help="number of processes that divide the weights (default: all)",
    )
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default=default("dtype", base.dtype))
    add("--attention", default=default("attention", base.attention), help="auto, varlen or a name in transformers")
    add(
        "--gradient-checkpointing",
        choices=("auto", "on", "off"),
        default=default("gradient_checkpointing", base.gradient_checkpointing),
    )
    add("--host", default=default("host", base.host) or None, help="address to listen on (default: all)")
    add("--port", type=int, default=default("port", base.port))
    add("--threads", type=_positive, default=cpu_threads(environ), help="torch threads (default: from the CPU limit)")
    add("--keep-policies", type=_positive, default=default("keep_policies", base.keep_policies))
    add("--upload-queue", type=_positive, default=default("upload_queue", base.upload_queue))
    add("--upload-bytes", type=_positive, default=default("upload_bytes", base.upload_bytes))
    add("--upload-tries", type=_positive, default=default("upload_tries", base.upload_tries))
    add("--shutdown-seconds", type=float, default=default("shutdown_seconds", base.shutdown_seconds))
    add(
        "--recovery-seconds",
        type=float,
        default=default("recovery_seconds", base.recovery_seconds),
        help="seconds of a run's device time between recovery copies (default: 0, no copies)",
    )
    add(
        "--scratch",
        type=Path,
        default=default("scratch", base.scratch) or None,
        help="folder for snapshots until they are uploaded",
    )
    add(
        "--order-path",
        type=Path,
        default=default("order_path", base.order_path) or None,
        help="file with the list of runs (TrainerOrder) that a shared pool's trainer starts with "
        "(default: not a shared pool; train one run)",
    )
    add(
        "--deaths-file",
        type=Path,
        default=default("deaths_file", base.deaths_file) or None,
        help="file that records for which runs a shared pool's trainer was computing when it crashed",
    )
    add("--unit-seconds", type=float, default=default("unit_seconds", base.unit_seconds))
    add("--log-level", default=default("log_level", base.log_level))
    return TrainerSettings(**vars(parser.parse_args(arguments)))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number
