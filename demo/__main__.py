"""Entry point of `make demo`: trains an RLRun on the local cluster and compares its adapter with its base model.

Writes build/demo.json (figures) and build/demo.svg (the reward curve). Exits with status 0 if the reward rose, engine
and trainer agreed on the token probabilities, the adapter, downloaded from S3, beat the base model on held-out prompts,
and a second run that started from the last checkpoint kept what was learned. With --control (`make demo CONTROL=1`) the
first run is repeated without learning, and must not gain.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from rlrun.storage.layout import RunLayout

from demo import negative_control, warm_start
from demo.cluster import local_cluster
from demo.example_job import ScriptJob
from demo.install import (
    BUCKET,
    EXAMPLES,
    MODEL_URI,
    ROOT,
    TRAINER_IMAGE,
    S3Access,
    install_platform,
    let_users_in,
    rlrun,
)
from demo.kubectl import Kubectl
from demo.reward_curve import sparkline, svg
from demo.run_metrics import Line, mean_of, read_metrics
from demo.watch import apply_run, follow

NAMESPACE = "demo"
WARM = "reverse-text-warm"
CONTROL = "reverse-text-control"
CONTROL_NAMESPACE = "demo-control"
RUN_FILE = EXAMPLES / "reverse-text.yaml"
WARM_FILE = ROOT / "build" / "demo-warm.yaml"
CONTROL_FILE = ROOT / "build" / "demo-control.yaml"
WINDOW = 5
LIMITS = {"reward_gain": 0.2, "mismatch_kl_mean": 0.01}


def main() -> int:
    """Run the demo. Returns 0 if every claim holds."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--control",
        action="store_true",
        help="also train without learning, as a control whose reward must not rise; takes one more minute",
    )
    args = parser.parse_args()
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", flush=True)

    kubectl, s3 = local_cluster()
    install_platform(kubectl, s3, say)
    example = yaml.safe_load(RUN_FILE.read_text())
    for old in (WARM, example["metadata"]["name"]):
        kubectl("delete", "rlrun", old, "-n", NAMESPACE, "--ignore-not-found", "--wait=true", timeout=180)
    report = measure(kubectl, s3, RUN_FILE, NAMESPACE, say)
    checkpoint = report["last_checkpoint"]
    say(f"warm start: {warm_start.STEPS} more steps from {checkpoint}, each with the newest policy")
    write_run(WARM_FILE, warm_start.warm_run(example, WARM, checkpoint))
    warm = train(kubectl, WARM_FILE, NAMESPACE, say)
    report["warm_start"] = warm_start.figures(metrics_of(s3, warm))
    report["control"] = None
    if args.control:
        say(f"negative control: the same run with learning rate {negative_control.LEARNING_RATE}")
        write_run(CONTROL_FILE, negative_control.control_run(example, CONTROL))
        kubectl("delete", "rlrun", CONTROL, "-n", CONTROL_NAMESPACE, "--ignore-not-found", "--wait=true", timeout=180)
        report["control"] = measure(kubectl, s3, CONTROL_FILE, CONTROL_NAMESPACE, say)
        report["control"]["learning_rate"] = negative_control.LEARNING_RATE
    report["wall_seconds"] = round(time.monotonic() - started, 1)
    failures = failed_claims(report)
    report["passed"] = not failures
    write(report)
    summary(report, failures)
    return 1 if failures else 0


def measure(kubectl: Kubectl, s3: S3Access, file: Path, namespace: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Train the run in a file to its end and evaluate its adapter. Returns the run's figures."""
    kubectl("delete", "rlcheckpoints,rladapters", "--all", "-n", namespace, "--ignore-not-found")
    applied = time.monotonic()
    ended = train(kubectl, file, namespace, say)
    run_seconds = time.monotonic() - applied
    for kinds in ("rlruns", "rlcheckpoints", "rladapters", "rlmodels"):
        print(f"\n$ kubectl get {kinds}\n{kubectl('get', kinds, '-n', namespace)}", end="")
    # Run commands like users, who have no S3 key.
    let_users_in(kubectl, namespace)
    words = ("metrics", ended["metadata"]["name"], "-n", namespace, "--last", "3")
    print(f"\n$ rlrun {' '.join(words)}\n{rlrun(kubectl, *words)}", end="")
    print()
    say("evaluating the adapter, downloaded from S3, on held-out prompts")
    report = figures(kubectl, s3, ended, namespace) | {"run_seconds": round(run_seconds, 1)}
    return report | evaluate(kubectl, s3, report["adapter_uri"])


def write_run(file: Path, run: dict[str, Any]) -> None:
    """Write an RLRun to a YAML file."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(run))


def train(kubectl: Kubectl, file: Path, namespace: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Apply the run in a file and wait for its end. Returns the run."""
    say(f"kubectl apply -f {file.relative_to(ROOT)}")
    apply_run(kubectl, file, namespace)
    name = yaml.safe_load(file.read_text())["metadata"]["name"]
    return follow(kubectl, name, namespace, seconds=1200, say=say)


def metrics_of(s3: S3Access, run: dict[str, Any]) -> list[Line]:
    """Return the metrics of the trained steps of a run."""
    metadata = run["metadata"]
    layout = RunLayout.of(BUCKET, "", metadata["namespace"], metadata["uid"])
    return [line for line in read_metrics(s3.store(), layout) if "reward/mean" in line]


def figures(kubectl: Kubectl, s3: S3Access, run: dict[str, Any], namespace: str = NAMESPACE) -> dict[str, Any]:
    """Collect figures from the status of the run and from S3."""
    lines = metrics_of(s3, run)
    rewards = [line["reward/mean"] for line in lines]
    checkpoints = kubectl.list("rlcheckpoints", namespace)
    adapters = kubectl.list("rladapters", namespace)
    last = max(adapters, key=lambda a: a["spec"]["step"])
    return {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain") else ""),
        "run": RUN_FILE.name,
        "steps": len(lines),
        "reward_first": round(fmean(rewards[:WINDOW]), 4),
        "reward_last": round(fmean(rewards[-WINDOW:]), 4),
        "rewards": [round(r, 4) for r in rewards],
        "mismatch_kl_mean": mean_of(lines, "mismatch_kl/all/mean"),
        "seconds_per_step": seconds_per_step(lines),
        "checkpoints_ready": ready(checkpoints),
        "adapters_ready": ready(adapters),
        "policy_versions": run["status"]["progress"]["policyVersion"] + 1,
        "restarts": run["status"].get("restarts", 0),
        "groups": run["status"].get("groups", {}),
        "adapter_uri": last["spec"]["uri"],
        "last_checkpoint": run["status"]["lastCheckpoint"],
    }


def seconds_per_step(lines: list[Line]) -> float:
    """Return the median wall time between the ends of consecutive steps."""
    times = [datetime.fromisoformat(line["time"]).timestamp() for line in lines]
    gaps = sorted(b - a for a, b in pairwise(times))
    return round(gaps[len(gaps) // 2], 2)


def ready(objects: list[dict[str, Any]]) -> int:
    """Count the objects in phase Ready."""
    return sum(o.get("status", {}).get("phase") == "Ready" for o in objects)


def evaluate(kubectl: Kubectl, s3: S3Access, adapter_uri: str) -> dict[str, float]:
    """Return the rewards of base model and adapter on held-out prompts, measured by a Job with stock peft."""
    data = EXAMPLES / "environments" / "reverse_text" / "reverse_text_data.py"
    job = ScriptJob(
        name="evaluate-adapter",
        namespace="rlrun-system",
        image=TRAINER_IMAGE,
        files=[EXAMPLES / "evaluate_adapter.py", data],
        args=["--model", str(MODEL_URI), "--adapter", adapter_uri],
        secret=s3.secret_name,
        env=s3.job_environment(),
    )
    output = job.run(kubectl, seconds=300, say=lambda _: None)
    job.delete(kubectl)
    result: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return result


def failed_claims(report: dict[str, Any]) -> list[str]:
    """Return the claims that do not hold."""
    claims = {
        f"the reward rises by at least {LIMITS['reward_gain']}": report["reward_last"] - report["reward_first"]
        >= LIMITS["reward_gain"],
        f"mismatch KL stays at or below {LIMITS['mismatch_kl_mean']}": report["mismatch_kl_mean"]
        <= LIMITS["mismatch_kl_mean"],
        "at least one checkpoint is Ready": report["checkpoints_ready"] >= 1,
        "at least one adapter is Ready": report["adapters_ready"] >= 1,
        "the adapter beats its base model, sampled": report["adapter_reward_sampled"] > report["base_reward_sampled"],
        "the adapter beats its base model, greedy": report["adapter_reward_greedy"] > report["base_reward_greedy"],
    }
    warm = warm_start.failed_claims(report, report["warm_start"])
    control = negative_control.failed_claims(report["control"]) if report.get("control") else []
    return [*(claim for claim, holds in claims.items() if not holds), *warm, *control]


def write(report: dict[str, Any]) -> None:
    """Write build/demo.json and build/demo.svg."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    (build / "demo.json").write_text(json.dumps(report, indent=2) + "\n")
    (build / "demo.svg").write_text(svg(report["rewards"], "reverse-text: mean reward of each step"))


def summary(report: dict[str, Any], failures: list[str]) -> None:
    """Print the figures and the result."""
    r, warm = report, report["warm_start"]
    rows = {
        "before training": before_training(r),
        "reward": f"{r['reward_first']:.3f} -> {r['reward_last']:.3f} in {r['steps']} steps  {sparkline(r['rewards'])}",
        "held-out greedy": f"{r['base_reward_greedy']:.3f} base -> {r['adapter_reward_greedy']:.3f} adapter",
        "held-out sampled": f"{r['base_reward_sampled']:.3f} base -> {r['adapter_reward_sampled']:.3f} adapter",
        "negative control": control_line(r.get("control")),
        "warm start": f"{warm['reward']:.3f} mean reward of {warm['steps']} steps from the last checkpoint",
        "mismatch KL": f"{r['mismatch_kl_mean']:.1e} mean; on policy at most {warm['mismatch_kl_on_policy']:.1e} "
        f"in {warm['mismatch_kl_on_policy_steps']} steps",
        "in S3": f"{r['checkpoints_ready']} checkpoints and {r['adapters_ready']} adapters Ready",
        "time": f"{r['seconds_per_step']} s per step, run {r['run_seconds']:.0f} s, all {r['wall_seconds']:.0f} s",
        "figures": "build/demo.json, build/demo.svg",
    }
    print()
    for name, text in rows.items():
        print(f"  {name:<18} {text}")
    print()
    for claim in failures:
        print(f"  FAILED: {claim}", file=sys.stderr)
    print("demo passed" if not failures else f"demo FAILED (failed checks: {len(failures)})")


def before_training(report: dict[str, Any]) -> str:
    """Return what the tiny model could do before training: its scores on held-out prompts."""
    return (
        f"the base model scores {report['base_reward_greedy']:.3f} greedy and {report['base_reward_sampled']:.3f} "
        "sampled on held-out prompts; the maximum is 1"
    )


def control_line(control: dict[str, Any] | None) -> str:
    """Return the result of the negative control, or how to run it."""
    if control is None:
        return "not run (make demo CONTROL=1)"
    return (
        f"{control['reward_first']:.3f} -> {control['reward_last']:.3f} without learning; held-out greedy "
        f"{control['base_reward_greedy']:.3f} base -> {control['adapter_reward_greedy']:.3f} adapter"
    )


def git(*args: str) -> str:
    """Return the output of git for this checkout, or an empty string outside of a checkout."""
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
