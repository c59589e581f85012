"""`rlrun metrics` and `rlrun rollouts`: what a run has written of itself to S3, while it lives and ever after."""

import json
import sys
from typing import Annotated, Any

import typer
from rlrun.storage.layout import RunLayout, step_of
from rlrun.storage.metric_files import Line, merged, parse_lines
from rlrun.storage.store import Store

from rlrun_cli.commands.runs import Name, Output
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster
from rlrun_cli.remote.run_storage import Bucket, Endpoint, Prefix, layout_of, open_store, s3_asked
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError

METRICS_EPILOG = """Examples:

  rlrun metrics reverse-text-x7k2p

  rlrun metrics reverse-text-x7k2p -m reward/mean -m seq_len/mean --min-step 10

  rlrun metrics reverse-text-x7k2p -o json | jq '.[]."reward/mean"'

One line per step; docs/reference/metrics.md says what each number means, -o name which there are. S3 credentials come
from the usual AWS_* variables. Works for runs that have ended, and for deleted ones of which an artifact is left."""
ROLLOUTS_EPILOG = """Examples:

  rlrun rollouts reverse-text-x7k2p

  rlrun rollouts reverse-text-x7k2p -s 20 --num 5 -o json

Without -s the newest step. S3 credentials come from the usual AWS_* variables."""
SHOWN = ("reward/mean", "loss/mean", "mismatch_kl/all/mean", "completion_len/mean", "error/mean")
"""Columns of the table, as far as the run has them."""
SUFFIX = ".jsonl.zst"
TEXT = 60
"""Characters of an answer in the table."""


def read_metrics(store: Store, layout: RunLayout) -> list[Line]:
    """All lines of the run, one per step. Raises StoreError."""
    folder = layout.root / "metrics"
    parts = [store.get_bytes(folder / name).decode() for name, _ in store.list_files(folder)]
    return merged(line for part in parts for line in parse_lines(part))


def read_rollouts(store: Store, layout: RunLayout, step: int | None) -> list[dict[str, Any]]:
    """The rollouts of one step, of the newest without one. Raises StoreError, and CliError when there are none."""
    steps = sorted(
        step_of(name.removesuffix(SUFFIX))
        for name, _ in store.list_files(layout.root / "rollouts")
        if name.endswith(SUFFIX)
    )
    if not steps or (step is not None and step not in steps):
        there = f"there are those of {len(steps)} steps, {steps[0]} to {steps[-1]}" if steps else "none are written yet"
        raise CliError(f"no rollouts of step {step if step is not None else '-'} at {layout.root}", there)
    try:
        import zstandard
    except ImportError:
        raise CliError("rollouts are packed with zstandard, which is not installed", "pip install zstandard") from None
    data = store.get_bytes(layout.rollouts(steps[-1] if step is None else step))
    text = zstandard.ZstdDecompressor().stream_reader(data).read().decode()
    return [json.loads(line) for line in text.splitlines()]


def _write(value: Any, fmt: output.Format) -> None:
    as_json = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    sys.stdout.write(output.to_yaml(value) if fmt is output.Format.yaml else as_json)


def metrics(
    ctx: typer.Context,
    name: Name,
    metric: Annotated[list[str] | None, typer.Option("-m", "--metric", help="A metric to show; repeatable.")] = None,
    min_step: Annotated[int | None, typer.Option(min=0, help="First step to show.")] = None,
    max_step: Annotated[int | None, typer.Option(min=0, help="Last step to show.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last steps of these.")] = None,
    fmt: Output = None,
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the metrics of a run by step, also after its end."""
    api = cluster(ctx, kubeconfig, context, namespace)
    layout = layout_of(api, name, bucket, prefix)
    with s3_asked(f"read the metrics of {name}"):
        lines = read_metrics(open_store(ctx, endpoint), layout)
    low, high = min_step or 0, max_step if max_step is not None else sys.maxsize
    lines = [line for line in lines if low <= int(line["step"]) <= high]
    lines = lines[-last:] if last else lines
    known = {key for line in lines for key in line}
    if unknown := [m for m in metric or [] if m not in known]:
        raise CliError(
            f"{name} has no metric {', '.join(unknown)} in these steps", f"see all: rlrun metrics {name} -o name"
        )
    chosen = metric or [m for m in SHOWN if m in known]
    if fmt is output.Format.name:
        sys.stdout.write("".join(f"{key}\n" for key in sorted(known - {"step", "time"})))
    elif fmt:
        keep = {"step", "time", *metric} if metric else known
        _write([{k: v for k, v in line.items() if k in keep} for line in lines], fmt)
    elif not lines:
        output.say(f"No metrics at {layout.root} yet.")
    else:
        rows = [[str(line["step"]), *(_cell(line.get(m)) for m in chosen)] for line in lines]
        output.print_table(["STEP", *(m.upper() for m in chosen)], rows)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{v:.4g}" for v in value)
    return "-" if value is None else f"{value:.4g}"


def rollouts(
    ctx: typer.Context,
    name: Name,
    step: Annotated[int | None, typer.Option("-s", "--step", min=0, help="The step that they trained.")] = None,
    count: Annotated[int, typer.Option("--num", min=1, help="How many to a page.")] = 100,
    page: Annotated[int, typer.Option(min=1, help="Which page.")] = 1,
    fmt: Output = None,
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the rollouts that a step was trained on, with their rewards, also after the run's end."""
    api = cluster(ctx, kubeconfig, context, namespace)
    layout = layout_of(api, name, bucket, prefix)
    with s3_asked(f"read the rollouts of {name}"):
        found = read_rollouts(open_store(ctx, endpoint), layout, step)
    shown = found[(page - 1) * count : page * count]
    if fmt is output.Format.name:
        sys.stdout.write("".join(f"{r['rollout']}\n" for r in shown))
    elif fmt:
        _write(shown, fmt)
    else:
        headers = ["ENVIRONMENT", "EXAMPLE", "REWARD", "ADVANTAGE", "TOKENS", "STOPPED-BY", "ANSWER"]
        output.print_table(headers, [rollout_row(r) for r in shown])
        output.say(f"{len(shown)} of {len(found)} rollouts of step {found[0]['step']}" if found else "No rollouts.")


def rollout_row(entry: dict[str, Any]) -> list[output.Cell]:
    """One line of the table; a rollout that failed shows why instead of its answer."""
    error = entry.get("error") or {}
    answer = f"{error['reason']}: {error.get('message', '')}" if error else _answer(entry.get("completion"))
    return [
        str(entry.get("environment")),
        str(entry.get("example")),
        output.number(entry.get("reward")),
        output.number(entry.get("advantage")),
        str(entry.get("completionTokens")),
        entry.get("stopCondition"),
        answer,
    ]


def _answer(completion: Any) -> str:
    last = completion[-1] if isinstance(completion, list) and completion else completion
    text = last.get("content") if isinstance(last, dict) else last
    plain = " ".join(str(text if text is not None else "").split())
    return plain if len(plain) <= TEXT else plain[: TEXT - 1] + "…"
