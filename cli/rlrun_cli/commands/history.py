"""Commands `metrics` and `rollouts`: read what a run wrote to S3, during the run and after its end."""

import json
import sys
from typing import Annotated, Any

import typer
from rlrun.storage.layout import RunLayout, step_of
from rlrun.storage.metric_files import Line, merge_lines, parse_lines
from rlrun.storage.store import Store

from rlrun_cli.commands.runs import Name, Output
from rlrun_cli.remote.run_storage import RunFiles, s3_operation, with_run_files
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError
from rlrun_cli.terminal.plot import plot

METRICS_EPILOG = """Examples:

  rlrun metrics reverse-text-x7k2p
  rlrun metrics reverse-text-x7k2p -m reward/mean -m seq_len/mean --min-step 10
  rlrun metrics reverse-text-x7k2p --plot -m reward/mean
  rlrun metrics reverse-text-x7k2p -o json | jq '.[]."reward/mean"'

One line per step. -o name lists all metrics; docs/reference/metrics.md describes them. Also works for runs that have \
ended, and for deleted runs that still have an artifact. Needs `get rlruns/metrics` in the namespace."""
ROLLOUTS_EPILOG = """Examples:

  rlrun rollouts reverse-text-x7k2p
  rlrun rollouts reverse-text-x7k2p -s 20 --num 5 -o json

Without -s the newest step is shown. Needs `get rlruns/rollouts` in the namespace."""
DEFAULT_METRICS = ("reward/mean", "loss/mean", "mismatch_kl/all/mean", "completion_len/mean", "error/mean")
"""Columns of the table; those that the run does not have are omitted."""
SUFFIX = ".jsonl.zst"
ANSWER_WIDTH = 60
"""Number of characters of an answer in the table."""


def read_metrics(store: Store, layout: RunLayout) -> list[Line]:
    """Return all lines of the run, one per step. Raises StoreError."""
    folder = layout.root / "metrics"
    parts = [store.get_bytes(folder / name).decode() for name, _ in store.list_files(folder)]
    return merge_lines(line for part in parts for line in parse_lines(part))


def read_rollouts(store: Store, layout: RunLayout, step: int | None) -> list[dict[str, Any]]:
    """Return the rollouts of one step, by default the newest. Raises StoreError, and CliError if there are none."""
    steps = sorted(
        step_of(name.removesuffix(SUFFIX))
        for name, _ in store.list_files(layout.root / "rollouts")
        if name.endswith(SUFFIX)
    )
    if not steps or (step is not None and step not in steps):
        if not steps:
            raise CliError(f"{layout.root} has no rollouts yet", "try again after the first step")
        available = f"the run has {len(steps)} steps with rollouts, {steps[0]} to {steps[-1]}: select one with -s"
        raise CliError(f"{layout.root} has no rollouts of step {step}", available)
    try:
        import zstandard
    except ImportError:
        raise CliError(
            "rollouts cannot be read: the package zstandard is not installed", "pip install zstandard"
        ) from None
    data = store.get_bytes(layout.rollouts(steps[-1] if step is None else step))
    text = zstandard.ZstdDecompressor().stream_reader(data).read().decode()
    return [json.loads(line) for line in text.splitlines()]


def _write(value: Any, fmt: output.Format) -> None:
    as_json = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    sys.stdout.write(output.to_yaml(value) if fmt is output.Format.yaml else as_json)


@with_run_files
def metrics(
    files: RunFiles,
    name: Name,
    metric: Annotated[list[str] | None, typer.Option("-m", "--metric", help="Metric to show. Repeatable.")] = None,
    min_step: Annotated[int | None, typer.Option(min=0, help="First step to show.")] = None,
    max_step: Annotated[int | None, typer.Option(min=0, help="Last step to show.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Number of last steps to show.")] = None,
    plotted: Annotated[bool, typer.Option("--plot", help="Draw a chart of each metric.")] = False,
    fmt: Output = None,
) -> None:
    """Show the metrics of a run by step, also after its end."""
    if plotted and fmt:
        raise CliError("--plot cannot be used with -o", "leave out one of the two", code=INVALID)
    with s3_operation(f"read the metrics of {name}"):
        lines = read_metrics(files.store, files.layout)
    low, high = min_step or 0, max_step if max_step is not None else sys.maxsize
    lines = [line for line in lines if low <= int(line["step"]) <= high]
    lines = lines[-last:] if last else lines
    known = {key for line in lines for key in line}
    if unknown := [m for m in metric or [] if m not in known]:
        raise CliError(
            f"{name} has no metric {', '.join(unknown)} in these steps",
            f"list all metrics: rlrun metrics {name} -o name",
        )
    chosen = metric or [m for m in DEFAULT_METRICS if m in known]
    if fmt is output.Format.name:
        sys.stdout.write("".join(f"{key}\n" for key in sorted(known - {"step", "time"})))
    elif fmt:
        keep = {"step", "time", *metric} if metric else known
        _write([{k: v for k, v in line.items() if k in keep} for line in lines], fmt)
    elif not lines:
        output.notice(f"{files.layout.root} has no metrics yet.")
    elif plotted:
        sys.stdout.write("\n\n".join("\n".join(chart(lines, m)) for m in chosen) + "\n")
    else:
        rows = [[str(line["step"]), *(_cell(line.get(m)) for m in chosen)] for line in lines]
        output.print_table(["STEP", *(m.upper() for m in chosen)], rows)


def chart(lines: list[Line], metric: str) -> list[str]:
    """Return the chart of a metric over the steps. Raises CliError for a histogram."""
    values = [(line["step"], line[metric]) for line in lines if line.get(metric) is not None]
    if any(isinstance(value, list) for _, value in values):
        raise CliError(f"--plot: {metric} has several values per step", "show it without --plot", code=INVALID)
    return plot(metric, [(float(step), float(value)) for step, value in values])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{v:.4g}" for v in value)
    return "-" if value is None else f"{value:.4g}"


@with_run_files
def rollouts(
    files: RunFiles,
    name: Name,
    step: Annotated[
        int | None, typer.Option("-s", "--step", min=0, help="Step that was trained on them. Default: the newest.")
    ] = None,
    count: Annotated[int, typer.Option("--num", min=1, help="Rollouts per page.")] = 100,
    page: Annotated[int, typer.Option(min=1, help="Number of the page.")] = 1,
    fmt: Output = None,
) -> None:
    """Show the rollouts that a step was trained on, with their rewards, also after the run's end."""
    with s3_operation(f"read the rollouts of {name}"):
        found = read_rollouts(files.store, files.layout, step)
    shown = found[(page - 1) * count : page * count]
    if fmt is output.Format.name:
        sys.stdout.write("".join(f"{r['rollout']}\n" for r in shown))
    elif fmt:
        _write(shown, fmt)
    else:
        headers = ["ENVIRONMENT", "EXAMPLE", "REWARD", "ADVANTAGE", "TOKENS", "STOPPED-BY", "ANSWER"]
        output.print_table(headers, [rollout_row(r) for r in shown])
        output.notice(f"{len(shown)} of {len(found)} rollouts of step {found[0]['step']}" if found else "No rollouts.")


def rollout_row(entry: dict[str, Any]) -> list[output.Cell]:
    """Return one row of the table. A failed rollout shows its error instead of its answer."""
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
    return plain if len(plain) <= ANSWER_WIDTH else plain[: ANSWER_WIDTH - 1] + "…"
