"""Command `follow`: shows a run's progress until it ends, on a terminal as a progress bar, otherwise as one line per
change.

The command only reads; Ctrl-C does not affect the run. It exits when the run ends or is deleted, or when the API server
has not responded for `MAX_OUTAGE_SECONDS`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text
from rlrun.kube.kinds import RLRUN
from typing_extensions import override

from rlrun_cli.commands.runs import Name
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import cli_context, with_cluster
from rlrun_cli.remote.run_data.run_summary import RunState, sparkline, summarize
from rlrun_cli.remote.watching import MAX_OUTAGE_SECONDS
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CONTROL_CHARACTERS, CliError, NotFoundError, UnreachableError

FOLLOW_RUN_EPILOG = """Examples:

  rlrun follow reverse-text-x7k2p
  rlrun follow reverse-text-x7k2p && rlrun adapters reverse-text-x7k2p

Exit codes: 0 the run completed; 1 it failed, was stopped or was deleted; 130 after Ctrl-C, which does not stop the \
run."""
INTERVAL = 1.0
DETACHED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""


@dataclass
class RewardHistory:
    """Rewards by step that the command has observed so far."""

    rewards: dict[int, float] = field(default_factory=dict)

    def add(self, summary: RunState) -> None:
        """Add the newest reward. If the run was rewound to an earlier step, discards the rewards of later steps."""
        if summary.reward is not None:
            self.rewards = {s: r for s, r in self.rewards.items() if s < summary.step} | {summary.step: summary.reward}

    @property
    def line(self) -> str:
        """Sparkline of the rewards."""
        return sparkline([self.rewards[s] for s in sorted(self.rewards)])


def describe(summary: RunState, history: RewardHistory) -> str:
    """Describe a run in one line: phase, step, reward, and time left or the reason for waiting."""
    parts = [f"{summary.phase:<9}", f"step {summary.steps}"]
    if summary.reward is not None:
        parts.append(f"reward {summary.reward:.3f} {history.line}")
    if summary.time_left:
        parts.append(summary.time_left)
    if summary.reason and (summary.step == 0 or summary.phase != "Running"):
        parts.append(f"{summary.reason}: {summary.message}" if summary.message else summary.reason)
    return "  ".join(parts).translate(CONTROL_CHARACTERS)


class Display(Protocol):
    """Output of the `follow` command."""

    def show(self, summary: RunState, history: RewardHistory) -> None:
        """Show the current state of the run."""
        ...

    def note(self, text: str) -> None:
        """Print a message."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


class LineDisplay(Display):
    """Display that prints a line when phase, step or reason changes."""

    def __init__(self) -> None:
        self._last: tuple[str, int, str] | None = None

    @override
    def show(self, summary: RunState, history: RewardHistory) -> None:
        key = (summary.phase, summary.step, summary.reason)
        if key != self._last:
            self._last = key
            output.out().print(Text(describe(summary, history)))

    @override
    def note(self, text: str) -> None:
        output.notice(text)

    @override
    def close(self) -> None: ...


class ProgressDisplay(Display):
    """Progress bar that is redrawn in place."""

    def __init__(self, name: str, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[phase]}", markup=True),
            TextColumn(name, markup=False, style="bold"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[steps]}", markup=False),
            TextColumn("{task.fields[facts]}", markup=False),
            console=console,
        )
        self._task = self._progress.add_task("", total=None, phase="", steps="", facts="")
        self._why = ""
        self._progress.start()

    @override
    def show(self, summary: RunState, history: RewardHistory) -> None:
        facts = [f"reward {summary.reward:.3f} {history.line}"] if summary.reward is not None else []
        if summary.time_left:
            facts.append(summary.time_left)
        if summary.reason and (summary.step == 0 or summary.phase != "Running"):
            facts.append(summary.reason)
        style = output.PHASE_STYLES.get(summary.phase, "default")
        self._progress.update(
            self._task,
            completed=summary.step,
            total=summary.max_steps or None,
            steps=summary.steps,
            phase=f"[{style}]{summary.phase}[/]" if summary.phase in output.PHASE_STYLES else "",
            facts="  ".join(facts),
        )
        why = f"{summary.reason}: {summary.message}" if summary.message else ""
        if why and why != self._why and not summary.finished:
            self.note(why)
        self._why = why

    @override
    def note(self, text: str) -> None:
        self._progress.console.print(Text(text.translate(CONTROL_CHARACTERS), style="dim"))

    @override
    def close(self) -> None:
        self._progress.stop()


def display_for(name: str) -> Display:
    """Return a progress bar if the output is a terminal, otherwise a line display."""
    console = Console(highlight=False)
    return ProgressDisplay(name, console) if console.is_terminal and not console.is_dumb_terminal else LineDisplay()


def watch_until_finished(
    api: RemoteCluster,
    name: str,
    display: Display,
    sleep: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
    *,
    was_found: bool = False,
) -> RunState:
    """Show a run until it finishes and return its final state. `was_found` is True if the run is known to exist.

    Raises NotFoundError if the run does not exist, and CliError if it is deleted, if a request is rejected, or if the
    API server does not respond: at once unless the run was found before, otherwise after MAX_OUTAGE_SECONDS.
    """
    history = RewardHistory()
    outage_since: float | None = None
    while True:
        try:
            summary = summarize(api.get(RLRUN, name))
        except NotFoundError:
            if not was_found:
                raise
            raise CliError(f"{name} was deleted", "list existing runs: rlrun list") from None
        except UnreachableError as problem:
            if not was_found:
                raise
            now = clock()
            if outage_since is None:
                outage_since = now
                display.note(f"{problem.message}; retrying; the run is not affected")
            if now - outage_since > MAX_OUTAGE_SECONDS:
                raise
        else:
            was_found, outage_since = True, None
            history.add(summary)
            display.show(summary, history)
            if summary.finished:
                return summary
        sleep(INTERVAL)


def follow_to_end(ctx: typer.Context, api: RemoteCluster, name: str, *, was_found: bool = False) -> None:
    """Show a run until it completes. `was_found` is True if the run is known to exist.

    Raises CliError if the run ends in another phase or `watch_until_finished` fails, and typer.Exit after Ctrl-C.
    """
    display = display_for(name)
    target = f"{name} -n {api.namespace}"
    try:
        summary = watch_until_finished(api, name, display, cli_context(ctx).sleep, was_found=was_found)
    except KeyboardInterrupt:
        display.close()
        output.notice(f"\nDetached; the run continues. Watch it: rlrun follow {target}   Stop it: rlrun stop {target}")
        raise typer.Exit(DETACHED) from None
    finally:
        display.close()
    if summary.phase == "Completed":
        output.notice(f"Completed. List the adapters to download: rlrun adapters {target}", "green")
        return
    why = f"{summary.reason}: {summary.message}" if summary.message else summary.reason
    raise CliError(
        f"{name} is {summary.phase} at step {summary.steps}" + (f": {why}" if why else ""),
        f"see its conditions: rlrun get {target}; its artifacts: rlrun checkpoints {target}",
    )


@with_cluster
def follow_run(ctx: typer.Context, api: RemoteCluster, name: Name) -> None:
    """Watch a run until it ends: phase, step, reward and time left."""
    follow_to_end(ctx, api, name)
