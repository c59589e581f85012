"""Following a run to its end: a progress bar on a terminal, a line per change anywhere else.

Following only looks. Ctrl-C leaves the run as it is, and a short outage of the API server is waited out. A following
ends when the run ends, when it is deleted, or when the API server has been silent for `PATIENCE` seconds.
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

from rlrun_cli.commands.runs import Name
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster, session
from rlrun_cli.remote.run_summary import RunSummary, sparkline, summarize
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError, NotFoundError, UnreachableError

EPILOG = """Examples:

  rlrun follow reverse-text-x7k2p

  rlrun follow reverse-text-x7k2p && rlrun adapters reverse-text-x7k2p

Exit code 0 only if the run completes. Ctrl-C stops the following, not the run."""
INTERVAL = 1.0
PATIENCE = 120.0
"""Seconds without an answer of the API server before following gives up."""
DETACHED = 130
"""Exit code after Ctrl-C, as of any program that it ends."""


@dataclass
class RewardHistory:
    """Rewards by step, as far as this following has seen them."""

    rewards: dict[int, float] = field(default_factory=dict)

    def add(self, seen: RunSummary) -> None:
        """Remember the newest reward; after a rewind the steps above it are forgotten."""
        if seen.reward is not None:
            self.rewards = {s: r for s, r in self.rewards.items() if s < seen.step} | {seen.step: seen.reward}

    @property
    def line(self) -> str:
        """The sparkline."""
        return sparkline([self.rewards[s] for s in sorted(self.rewards)])


def describe(seen: RunSummary, curve: RewardHistory) -> str:
    """One line for a log: phase, step, reward, time left, or what is waited for."""
    parts = [f"{seen.phase:<9}", f"step {seen.step}/{seen.max_steps}"]
    if seen.reward is not None:
        parts.append(f"reward {seen.reward:.3f} {curve.line}")
    if seen.time_left:
        parts.append(seen.time_left)
    if seen.reason and (seen.step == 0 or seen.phase != "Running"):
        parts.append(f"{seen.reason}: {seen.message}" if seen.message else seen.reason)
    return "  ".join(parts)


class Display(Protocol):
    """Where looks at a run go."""

    def show(self, seen: RunSummary, curve: RewardHistory) -> None:
        """One look."""
        ...

    def note(self, text: str) -> None:
        """A remark between looks."""
        ...

    def close(self) -> None:
        """Give the terminal back."""
        ...


class LineDisplay:
    """A line for each change; the sparkline and the time left alone are no change."""

    def __init__(self) -> None:
        self._last: tuple[str, int, str] | None = None

    def show(self, seen: RunSummary, curve: RewardHistory) -> None:
        """See `Display`."""
        key = (seen.phase, seen.step, seen.reason)
        if key != self._last:
            self._last = key
            output.out().print(Text(describe(seen, curve)))

    def note(self, text: str) -> None:
        """See `Display`."""
        output.say(text)

    def close(self) -> None:
        """See `Display`."""


class ProgressDisplay:
    """A bar that is drawn in place."""

    def __init__(self, name: str, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[phase]}", markup=True),
            TextColumn(name, markup=False, style="bold"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}", markup=False),
            TextColumn("{task.fields[facts]}", markup=False),
            console=console,
        )
        self._task = self._progress.add_task("", total=None, phase="", facts="")
        self._why = ""
        self._progress.start()

    def show(self, seen: RunSummary, curve: RewardHistory) -> None:
        """See `Display`."""
        facts = [f"reward {seen.reward:.3f} {curve.line}"] if seen.reward is not None else []
        if seen.time_left:
            facts.append(seen.time_left)
        if seen.reason and (seen.step == 0 or seen.phase != "Running"):
            facts.append(seen.reason)
        style = output.PHASE_STYLES.get(seen.phase, "default")
        self._progress.update(
            self._task,
            completed=seen.step,
            total=seen.max_steps or None,
            phase=f"[{style}]{seen.phase}[/]" if seen.phase in output.PHASE_STYLES else "",
            facts="  ".join(facts),
        )
        why = f"{seen.reason}: {seen.message}" if seen.message else ""
        if why and why != self._why and not seen.finished:
            self.note(why)
        self._why = why

    def note(self, text: str) -> None:
        """See `Display`."""
        self._progress.console.print(Text(text, style="dim"))

    def close(self) -> None:
        """See `Display`."""
        self._progress.stop()


def display_for(name: str) -> Display:
    """A bar where there is a terminal, lines where there is not."""
    console = Console(highlight=False)
    return ProgressDisplay(name, console) if console.is_terminal and not console.is_dumb_terminal else LineDisplay()


def look_until_finished(
    api: RemoteCluster,
    name: str,
    display: Display,
    sleep: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> RunSummary:
    """The last look at a run.

    Raises CliError when the run is deleted meanwhile, or the API server stays silent for longer than PATIENCE.
    """
    curve = RewardHistory()
    silent_since: float | None = None
    seen_before = False
    while True:
        try:
            seen = summarize(api.get(RLRUN, name))
        except NotFoundError:
            if not seen_before:
                raise
            raise CliError(f"{name} was deleted while it was followed") from None
        except UnreachableError as problem:
            now = clock()
            if silent_since is None:
                silent_since = now
                display.note(f"{problem.message}; waiting for it, the run is not affected")
            if now - silent_since > PATIENCE:
                raise
        else:
            seen_before, silent_since = True, None
            curve.add(seen)
            display.show(seen, curve)
            if seen.finished:
                return seen
        sleep(INTERVAL)


def follow_to_end(ctx: typer.Context, api: RemoteCluster, name: str) -> None:
    """Follow; returns only if the run completes.

    Raises CliError when it ends in any other way, typer.Exit after Ctrl-C.
    """
    display = display_for(name)
    place = f"{name} -n {api.namespace}"
    try:
        seen = look_until_finished(api, name, display, session(ctx).sleep)
    except KeyboardInterrupt:
        display.close()
        output.say(f"\nDetached; the run goes on. See it again: rlrun follow {place}   End it: rlrun stop {place}")
        raise typer.Exit(DETACHED) from None
    finally:
        display.close()
    if seen.phase == "Completed":
        output.say(f"Completed. Take the adapter: rlrun adapters {place}", "green")
        return
    why = f"{seen.reason}: {seen.message}" if seen.message else seen.reason
    raise CliError(
        f"{name} is {seen.phase} at step {seen.step}/{seen.max_steps}" + (f": {why}" if why else ""),
        f"see more: rlrun get {place}; its artifacts: rlrun checkpoints {place}",
    )


def follow_run(
    ctx: typer.Context,
    name: Name,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Watch a run until it ends: step, reward, time left."""
    follow_to_end(ctx, cluster(ctx, kubeconfig, context, namespace), name)
