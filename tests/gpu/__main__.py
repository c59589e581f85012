"""A run on a GPU of this machine, without a cluster: what its pods would run, side by side.

    python -m tests.gpu --weights FOLDER --python trainer=/opt/trainer/bin/python --python vllm=/opt/vllm/bin/python

Trainer, vLLM, sidecar, orchestrator and environment are the real ones, with the commands and variables of their pods;
S3 is a SeaweedFS. The reward of the run must rise, and trainer and engine must agree about the log-probabilities of
what was sampled. `--device cpu` does the same without a GPU, to test this program.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml
from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.protocol.access import bearer
from rlrun.protocol.orchestrator import RunStatus
from rlrun.storage.layout import environment_package
from rlrun.storage.store import Store
from rlrun_cli.inputs.wheel_builder import build_wheel
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.platform import resolve, run_layout

from demo.reward_curve import sparkline
from demo.run_metrics import Line, read_metrics
from tests.gpu.engine_start import answers, seconds_to_start
from tests.gpu.pod_processes import Machine, Ports, plan, started, token_of
from tests.support import seaweedfs
from tests.support.ports import claimed_ports
from tests.support.source_tree import PYTHONPATH, ROOT

BUCKET = "rlrun"
SETTINGS = OperatorSettings.model_validate(
    {"s3": {"bucket": BUCKET, "credentialsSecret": {"namespace": "none", "name": "none"}}}
)
IDENTITY = RunIdentity("gpu", "run", "uid-1", 1, 1)
LAYOUT = run_layout(SETTINGS, IDENTITY.namespace, IDENTITY.uid)
CONTAINERS = {"engine-access": "orchestrator", "sidecar": "orchestrator", "environment": "orchestrator"}
"""Containers that use the interpreter of another one."""
ENGINE_ON_GPU = ("--dtype", "bfloat16", "--gpu-memory-utilization", "0.4", "--max-num-seqs", "256")
"""Flags of vLLM: it shares the GPU with the trainer, which computes in bfloat16 there."""
POLL_SECONDS = 1.0
RISE = 0.1
"""Least difference between the rewards of the last and of the first fifth of the steps."""
MISMATCH = {"cuda": 2e-2, "cpu": 1e-2}
"""Largest mean mismatch KL of a run: trainer and engine round differently, and rollouts are up to a step old."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and return 0 if the run completed, its reward rose, and trainer and engine agree."""
    args = _parse(arguments)
    pythons = dict(pair.split("=", 1) for pair in args.python)
    own = {name: pythons.get(name, sys.executable) for name in ("trainer", "vllm", "orchestrator")}
    spec = yaml.safe_load(args.run.read_text(encoding="utf-8"))["spec"]
    model = yaml.safe_load(args.model.read_text(encoding="utf-8"))["spec"]
    if args.max_steps:
        spec["maxSteps"] = args.max_steps
    if args.device == "cuda":
        model = on_gpu(model)
    for setting in args.set:
        name, _, value = setting.partition("=")
        spec[name] = yaml.safe_load(value)
    with tempfile.TemporaryDirectory() as scratch, claimed_ports(6) as ports:
        folder = args.logs or Path(scratch) / "run"
        folder.mkdir(parents=True, exist_ok=True)
        s3_folder = Path(scratch) / "s3"
        s3_folder.mkdir()
        with seaweedfs.running(s3_folder, BUCKET) as s3:
            machine = Machine(
                folder=folder,
                model=args.weights.resolve(),
                storage=s3.environment,
                pythons=own | {name: own[other] for name, other in CONTAINERS.items()},
                variables={"RLRUN_DEVICE": args.device},
            )
            store = s3.store()
            result = run(
                spec, model, args.environment, Ports(*ports), machine, store, args.minutes * 60, args.engine_again
            )
            _write(args.result, result)
            result["evaluation"] = evaluate(machine, store, spec)
            _write(args.result, result)
    problems = judge(result, MISMATCH[args.device])
    print(json.dumps({**result["summary"], "evaluation": result["evaluation"]}, indent=1))
    print("passed" if not problems else "\n".join(["FAILED", *problems]))
    return 1 if problems else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        description=(__doc__ or "").splitlines()[0],
        epilog="Takes two minutes for the example of 30 steps. Logs of the processes: --logs FOLDER.",
    )
    add = parser.add_argument
    add("--weights", type=Path, required=True, help="folder with the base model of --model")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add(
        "--python", action="append", default=[], metavar="CONTAINER=PATH",
        help="interpreter with the packages of trainer, vllm or orchestrator (default: this one). Repeatable.",
    )  # fmt: skip
    add("--run", type=Path, default=ROOT / "examples/reverse-text.yaml", help="RLRun (default: %(default)s)")
    add("--model", type=Path, default=ROOT / "examples/models/reverse-text-tiny.yaml", help="its RLModel")
    add("--environment", type=Path, default=ROOT / "examples/environments/reverse_text", help="its only environment")
    add("--max-steps", type=int, help="steps, in place of those of the run")
    add("--set", action="append", default=[], metavar="FIELD=YAML", help="value of a field of the run. Repeatable.")
    add("--engine-again", action="store_true", help="start the engine once more, with the compiled kernels it kept")
    add("--minutes", type=float, default=20, help="time limit of the run (default: %(default)g)")
    add("--logs", type=Path, help="folder for volumes and logs, kept at the end")
    add("--result", type=Path, default=ROOT / "build/gpu.json", help="file with the metrics of all steps")
    return parser.parse_args(arguments)


def on_gpu(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the RLModel with a GPU for trainer and engine, without its flags, variables and resources for CPUs."""
    found = dict(model)
    found["trainer"] = {"gpus": 1, "microBatchTokens": model["trainer"]["microBatchTokens"]}
    found["inference"] = {"gpus": 1, "replicas": 1, "extraArgs": list(ENGINE_ON_GPU)}
    return found


def _write(file: Path, result: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def run(
    spec: Mapping[str, Any],
    model: Mapping[str, Any],
    environment: Path,
    ports: Ports,
    machine: Machine,
    store: Store,
    seconds: float,
    engine_again: bool = False,
) -> dict[str, Any]:
    """Run to the end, or for `seconds`. Returns the last status, the metrics of all steps and a summary.

    With `engine_again` the engine starts a second time after the run, on the cache that the first one filled.

    Raises SystemExit if a process of the run ends before the orchestrator.
    """
    resolved = resolve(IDENTITY, SETTINGS, RLRunSpec.model_validate(spec), RLModelSpec.model_validate(model), None)
    owner = spec["env"][0]["id"].split("/")[0]
    wheel = build_wheel(environment)
    store.put_bytes(environment_package(BUCKET, "", owner, wheel.name) / wheel.version / wheel.file, wheel.data)
    planned = plan(IDENTITY, SETTINGS, resolved, ports, machine, secrets.token_bytes(32))
    began = time.monotonic()
    with started(planned, machine.folder) as running:
        seen = watch(running, ports, token_of(planned), machine.folder, began + seconds)
    ended = time.monotonic()
    lines = read_metrics(store, LAYOUT)
    starts = {"empty cache": seen.engine - began if seen.engine else None}
    if engine_again:
        starts["kept cache"] = seconds_to_start(planned, ports.engine, machine.folder)
    return {
        "status": seen.status.to_json_dict() if seen.status else None,
        "lines": lines,
        "summary": summarized(lines)
        | {
            "seconds_to_first_step": seen.first_step - began if seen.first_step else None,
            "seconds": ended - began,
            "seconds_to_engine": starts,
        },
    }


@dataclass
class Seen:
    """What was observed of a run. Times are values of time.monotonic()."""

    status: RunStatus | None = None
    """Last status of the orchestrator."""
    engine: float | None = None
    """Time at which the engine was ready."""
    first_step: float | None = None
    """Time of the first trained step."""


def watch(
    running: Mapping[str, subprocess.Popen[bytes]], ports: Ports, token: str, logs: Path, deadline: float
) -> Seen:
    """Print progress until the orchestrator ends, or until `deadline`, a value of time.monotonic().

    Raises SystemExit if another process ends before.
    """
    seen, shown = Seen(), ""
    request = urllib.request.Request(f"http://127.0.0.1:{ports.status}/status", headers=bearer(token))
    began = time.monotonic()
    while running["orchestrator"].poll() is None:
        if time.monotonic() > deadline:
            print("the time is over: more with --minutes", flush=True)
            return seen
        for name, process in running.items():
            if name != "orchestrator" and process.poll() is not None:
                end = (logs / f"{name}.log").read_text(errors="replace")[-3000:]
                raise SystemExit(f"{name} ended with {process.returncode}; the end of {logs / name}.log:\n{end}")
        if seen.engine is None and answers(ports.engine):
            seen.engine = time.monotonic()
            print(f"[{seen.engine - began:6.1f} s] the engine is ready", flush=True)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                seen.status = RunStatus.model_validate_json(answer.read())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        if (last := seen.status) is not None:
            seen.first_step = seen.first_step or (time.monotonic() if last.step else None)
            waiting = last.waiting_for.message if last.waiting_for else ""
            line = f"step {last.step}  reward {last.reward}  {waiting}"
            if line != shown:
                print(f"[{time.monotonic() - began:6.1f} s] {line}", flush=True)
                shown = line
        time.sleep(POLL_SECONDS)
    print(f"the orchestrator ended with {running['orchestrator'].returncode}", flush=True)
    ended = logs / "orchestrator.end"
    if ended.exists():
        seen.status = RunStatus.model_validate_json(ended.read_bytes())
    return seen


def evaluate(machine: Machine, store: Store, spec: Mapping[str, Any]) -> dict[str, float]:
    """Return the rewards of base model and newest adapter on held-out texts, as the demo computes them.

    Empty without an adapter, and for another environment than the example's. Raises SystemExit if it fails.
    """
    adapters = sorted(store.list_folders(LAYOUT.adapters))
    args = spec["env"][0].get("args", {})
    if not adapters or not {"min_length", "max_length"} <= args.keys():
        return {}
    target = machine.folder / "adapter"
    store.download(LAYOUT.adapters / adapters[-1], target)
    command = [
        machine.pythons["trainer"], "examples/evaluate_adapter.py", "--model", str(machine.model),
        "--adapter", str(target), "--min-length", str(args["min_length"]), "--max-length", str(args["max_length"]),
    ]  # fmt: skip
    path = os.pathsep.join([PYTHONPATH, str(ROOT / "examples/environments/reverse_text")])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the evaluation failed: {done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def summarized(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the figures of a run that a reader wants first."""
    rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
    fifth = max(1, len(rewards) // 5)

    def middle(name: str) -> float | None:
        values = [line[name] for line in lines if line.get(name) is not None]
        return median(values) if values else None

    mismatch = [line["mismatch_kl/all/mean"] for line in lines if "mismatch_kl/all/mean" in line]
    names = sorted({name for line in lines for name in line if name.startswith(("perf/", "time/"))})
    return {
        "steps": len(rewards),
        "first_reward": fmean(rewards[:fifth]) if rewards else None,
        "last_reward": fmean(rewards[-fifth:]) if rewards else None,
        "rewards": sparkline(rewards),
        "mismatch_kl": fmean(mismatch) if mismatch else None,
        "medians": {name: middle(name) for name in names},
    }


def judge(result: Mapping[str, Any], mismatch: float) -> list[str]:
    """Return what is wrong with the run, one sentence each."""
    summary, status = result["summary"], result["status"] or {}
    found = []
    if status.get("phase") != "Completed":
        found.append(f"The run ended in phase {status.get('phase')}: {status.get('problem')}.")
    if None in summary.get("seconds_to_engine", {}).values():
        found.append(f"The engine was not ready in time: seconds until it was {summary['seconds_to_engine']}.")
    if not summary["steps"]:
        return [*found, "No step was trained."]
    if summary["last_reward"] - summary["first_reward"] < RISE:
        found.append(f"The reward rose from {summary['first_reward']:.3f} to {summary['last_reward']:.3f} only.")
    divergence = summary["mismatch_kl"]
    # Written so that NaN counts as a disagreement.
    if divergence is None or not divergence <= mismatch:
        found.append(f"Trainer and engine disagree: mean mismatch KL {divergence}, limit {mismatch:g}.")
    return found


if __name__ == "__main__":
    sys.exit(main())
