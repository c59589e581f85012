"""Commands `metrics` and `rollouts`: show what a run has written to S3, even after the run has ended."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rlrun.api.metric_aliases import canonical
from rlrun.storage.layout import RunLayout
from rlrun.storage.metric_files import Line, merge_lines, parse_lines
from rlrun.storage.samples.index import text_of
from rlrun.storage.samples.object_file import SamplesDamaged
from rlrun.storage.samples.record import SampleRecord, SampleSplit, SampleStatus
from rlrun.storage.samples.selection import SampleFilter
from rlrun.storage.store import Store

from rlrun_cli.commands.runs import Name, Output
from rlrun_cli.remote.run_data.stored_rollouts import ListedRollout, list_rollouts, open_step, records_of
from rlrun_cli.remote.run_storage import RunFiles, s3_operation, with_run_files
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import ESCAPES, INVALID, CliError
from rlrun_cli.terminal.plot import plot
from rlrun_cli.terminal.plot_files import FILE_OPTION, check_plot_file, with_plot_file, write_plot

__all__ = ["metrics", "rollouts", "with_plot_file"]

METRICS_EPILOG = """Examples:

  rlrun metrics reverse-text-x7k2p
  rlrun metrics reverse-text-x7k2p -m reward/mean -m seq_len/mean --min-step 10
  rlrun metrics reverse-text-x7k2p --plot -m reward/mean
  rlrun metrics reverse-text-x7k2p --plot reward.svg -m reward/mean -m loss/mean
  rlrun metrics reverse-text-x7k2p -o json | jq '.[]."reward/mean"'

Prints one line per step. -o name lists all metrics; docs/reference/metrics.md describes them and lists other names \
that -m accepts. Chart files require matplotlib: pip install 'rlrun[plot]'. Also works for runs that have ended, and \
for deleted runs that still have an artifact. Requires `get rlruns/metrics` in the namespace."""
ROLLOUTS_EPILOG = """Examples:

  rlrun rollouts reverse-text-x7k2p
  rlrun rollouts reverse-text-x7k2p -s 20 --max-reward 0.2
  rlrun rollouts reverse-text-x7k2p -s 20 --num 5 -o json
  rlrun rollouts reverse-text-x7k2p -s 20 --group g-1a2b
  rlrun rollouts reverse-text-x7k2p --split filtered --status errored
  rlrun rollouts reverse-text-x7k2p --split eval --env exam --num 5 -o json

Without -s, the newest step is shown. Requires `get rlruns/rollouts` in the namespace."""
DEFAULT_METRICS = ("reward/mean", "loss/mean", "mismatch_kl/all/mean", "completion_len/mean", "error/mean")
"""Metrics in the table if none are selected. Those that the run does not have are omitted."""
MAX_FUNCTIONS = 8
"""Maximum number of reward functions with their own column."""
GROUP_WIDTH = 10
"""Number of characters that the table shows of a group's id."""


def read_metrics(store: Store, layout: RunLayout) -> list[Line]:
    """Return all metrics of the run, one line per step. Raises StoreError."""
    folder = layout.root / "metrics"
    parts = [store.get_bytes(folder / name).decode() for name, _ in store.list_files(folder)]
    return merge_lines(line for part in parts for line in parse_lines(part))


def _write(value: Any, fmt: output.Format) -> None:
    sys.stdout.write(output.to_yaml(value) if fmt is output.Format.yaml else output.to_json(value, indent=1) + "\n")


@with_run_files
def metrics(
    files: RunFiles,
    name: Name,
    metric: Annotated[list[str] | None, typer.Option("-m", "--metric", help="Metric to show. Repeatable.")] = None,
    min_step: Annotated[int | None, typer.Option(min=0, help="First step to show.")] = None,
    max_step: Annotated[int | None, typer.Option(min=0, help="Last step to show.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Number of newest steps to show.")] = None,
    plotted: Annotated[
        bool,
        typer.Option(
            "--plot", help="Draw a chart of each metric in the terminal, or into FILE.png or FILE.svg if that follows."
        ),
    ] = False,
    plot_file: Annotated[Path | None, typer.Option(FILE_OPTION, hidden=True)] = None,
    fmt: Output = None,
) -> None:
    """Show the metrics of a run by step, even after it has ended."""
    if plotted and fmt:
        raise CliError("--plot cannot be used with -o", "remove one of the two", code=INVALID)
    if plot_file is not None:
        check_plot_file(plot_file)
    with s3_operation(f"read the metrics of {name}"):
        lines = read_metrics(files.store, files.layout)
    low, high = min_step or 0, max_step if max_step is not None else sys.maxsize
    lines = [line for line in lines if low <= int(line["step"]) <= high]
    lines = lines[-last:] if last else lines
    known = {key for line in lines for key in line}
    if unknown := [m for m in metric or [] if canonical(m) not in known]:
        raise CliError(
            f"{name} has no metric {', '.join(unknown)} in these steps",
            f"list all metrics: rlrun metrics {name} -o name",
        )
    chosen = metric or [m for m in DEFAULT_METRICS if m in known]
    if fmt is output.Format.name:
        sys.stdout.write("".join(f"{printable(key)}\n" for key in sorted(known - {"step", "time"})))
    elif fmt:
        keep = ["step", "time", *(metric or [])]
        chosen_lines = [{k: line[canonical(k)] for k in keep if canonical(k) in line} for line in lines]
        _write(chosen_lines if metric else lines, fmt)
    elif not lines:
        output.notice(f"{files.layout.root} has no metrics yet.")
    elif plot_file is not None:
        write_plot(plot_file, name, [(m, points(lines, m)) for m in chosen])
        typer.echo(str(plot_file))
    elif plotted:
        sys.stdout.write("\n\n".join("\n".join(chart(lines, m)) for m in chosen) + "\n")
    else:
        rows = [[str(line["step"]), *(_cell(line.get(canonical(m))) for m in chosen)] for line in lines]
        output.print_table(["STEP", *(m.upper() for m in chosen)], rows)


def chart(lines: list[Line], metric: str) -> list[str]:
    """Return the lines of a metric's chart by step. Raises CliError for a histogram."""
    return plot(metric, points(lines, metric))


def points(lines: list[Line], metric: str) -> list[tuple[float, float]]:
    """Return (step, value) for each step that has the metric. Raises CliError for a histogram."""
    name = canonical(metric)
    values = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    if any(isinstance(value, list) for _, value in values):
        raise CliError(f"--plot: {metric} has several values per step", "print it without --plot", code=INVALID)
    return [(float(step), float(value)) for step, value in values]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{v:.4g}" for v in value)
    return "-" if value is None else f"{value:.4g}"


@with_run_files
def rollouts(
    files: RunFiles,
    name: Name,
    step: Annotated[
        int | None, typer.Option("-s", "--step", min=0, help="Step of the rollouts. Default: newest.")
    ] = None,
    split: Annotated[
        SampleSplit,
        typer.Option(help="Rollouts used in training, validation or evaluation, or filtered out of training."),
    ] = SampleSplit.train,
    environment: Annotated[str | None, typer.Option("--env", help="Environment of the rollouts.")] = None,
    status: Annotated[SampleStatus | None, typer.Option(help="Outcome of the rollouts.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Smallest reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Largest reward.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Show the full text of one group. A unique prefix of its id is enough.")
    ] = None,
    count: Annotated[int, typer.Option("--num", min=1, help="Rollouts per page.")] = 100,
    page: Annotated[int, typer.Option(min=1, help="Page number.")] = 1,
    fmt: Output = None,
) -> None:
    """Show the rollouts of a step with their rewards, even after the run has ended."""
    wanted = SampleFilter(environment, status, min_reward, max_reward, group)
    with s3_operation(f"read the rollouts of {name}"):
        opened = open_step(files.store, files.layout, step, split, environment)
        selected = list_rollouts(opened, wanted)
        shown = selected[(page - 1) * count : page * count]
        needs_texts = fmt in (output.Format.json, output.Format.yaml) or (group is not None and fmt is None)
        texts = list(records_of(shown)) if needs_texts else []
    damages = [printable(str(text)) for text in texts if isinstance(text, SamplesDamaged)]
    records = [text for text in texts if isinstance(text, SampleRecord)]
    if fmt is output.Format.name:
        sys.stdout.write("".join(f"{rollout.row.rollout}\n" for rollout in shown))
    elif fmt:
        _write([record.to_json_dict() for record in records], fmt)
    elif group is not None:
        sys.stdout.write(group_text(records))
    else:
        _print_rollouts(shown)
    if not fmt:
        at = opened[0].index.step
        output.notice(f"{len(shown)} of {len(selected)} rollouts of step {at}" if selected else "No rollouts match.")
    damages += [printable(samples.problem) for samples in opened if samples.problem is not None]
    if damages:
        # Exit with an error, so that programs notice that rollouts are missing.
        raise CliError(f"some rollouts of {name} cannot be read; the others are shown", details=damages)


def _print_rollouts(shown: Sequence[ListedRollout]) -> None:
    functions = list(dict.fromkeys(function for rollout in shown for function in rollout.row.rewards))[:MAX_FUNCTIONS]
    agents = any(rollout.row.agent for rollout in shown)
    headers = ["GROUP", "ENVIRONMENT", "EXAMPLE", "STATUS", "REWARD", "ADVANTAGE"]
    if agents:
        headers.insert(headers.index("STATUS"), "AGENT")
    headers += [*(printable(f).upper() for f in functions), "TOKENS", "STOPPED-BY", "ANSWER"]
    output.print_table(headers, [rollout_row(rollout, functions, agents=agents) for rollout in shown])


def rollout_row(rollout: ListedRollout, functions: Sequence[str], *, agents: bool = False) -> list[output.Cell]:
    """Return one row of the table, with the agent if `agents` is set. ANSWER shows the error of a failed rollout."""
    group, row = rollout.group, rollout.row
    return [
        printable(group.group[:GROUP_WIDTH]),
        printable(group.environment),
        str(group.example),
        *([printable(row.agent or "")] if agents else []),
        str(row.status) if row.cause is None else f"{row.status} ({printable(row.cause)})",
        output.number(row.reward),
        output.number(row.advantage),
        *(output.number(row.rewards.get(function)) for function in functions),
        None if row.completion_tokens is None else str(row.completion_tokens),
        printable(row.stop_condition or ""),
        printable(row.text),
    ]


def group_text(records: Sequence[SampleRecord]) -> str:
    """Return the rollouts of a group as text: the prompt once, then each answer with its rewards."""
    lines: list[str] = []
    prompt: list[dict[str, Any]] | None = None
    for record in records:
        if record.prompt != prompt:
            prompt = record.prompt
            lines += [f"Example {record.example} of {record.environment}, group {record.group}", *_texts(prompt)]
            lines += [] if record.answer is None else [f"  expected: {_as_text(record.answer)}"]
        lines += ["", _heading(record), *_texts(record.completion)]
        lines += [f"  {record.error.reason}: {record.error.message}"] if record.error else []
        lines += [f"  ({cut.field}: {cut.removed} more not stored)" for cut in record.cut]
    return "".join(f"{printable(line)}\n" for text in lines for line in text.split("\n"))


def _heading(record: SampleRecord) -> str:
    parts = [f"{name} {reward.value:g} x {reward.weight:g}" for name, reward in record.rewards.items()]
    facts = [
        f"reward {output.number(record.reward)}" + (f" = {' + '.join(parts)}" if parts else ""),
        f"advantage {output.number(record.advantage)}",
        str(record.status) if record.cause is None else f"{record.status} ({record.cause})",
    ]
    facts += [f"{record.tokens.completion} tokens"] if record.tokens else []
    facts += [f"mean logprob {record.logprob.mean:g}"] if record.logprob else []
    facts += [f"policy {record.policy_version}"] if record.policy_version is not None else []
    facts += [record.stop_condition] if record.stop_condition else []
    agent = f" of {record.agent}" if record.agent else ""
    return f"Rollout {record.rollout}{agent}: {', '.join(facts)}"


def _texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [f"  {message.get('role', '-')}: {text_of(message)}" for message in messages]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def printable(text: str) -> str:
    """Return the text with invisible characters escaped and unprintable ones replaced by U+FFFD."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text.translate(ESCAPES))
