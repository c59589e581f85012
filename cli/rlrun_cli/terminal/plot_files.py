"""Charts as PNG and SVG files, drawn by matplotlib, which is an extra of the package."""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

from rlrun_cli.terminal.errors import INVALID, CliError

FILE_OPTION = "--plot-file"
"""Option in which the parser finds the file that follows --plot."""
FORMATS = ("png", "svg")
IMAGES = frozenset({".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"})
"""Ends of words after --plot that are meant as files. A run may have dots in its name."""
MAX_CHARTS = 64
WIDTH, HEIGHT = 8.0, 2.4
"""Inches of one chart."""
DOTS_PER_INCH = 150
FEW_POINTS = 50
"""Points are marked in a line with fewer."""

Chart = tuple[str, Sequence[tuple[float, float]]]
"""Title, and pairs of step and value."""


def with_plot_file(words: Sequence[str]) -> list[str]:
    """Return the words of a command, with the file that follows --plot as an option of its own.

    `--plot` alone draws in the terminal, so it does not take the next word, such as the name of the run.
    """
    result: list[str] = []
    for word in words:
        option, given, value = word.partition("=")
        if option == "--plot" and given:
            result += ["--plot", FILE_OPTION, value]
        elif result and result[-1] == "--plot" and Path(word).suffix.lower() in IMAGES:
            result += [FILE_OPTION, word]
        else:
            result.append(word)
    return result


def check_plot_file(file: Path) -> None:
    """Raise CliError if the file cannot be drawn, before anything is read for it."""
    if _format(file) not in FORMATS:
        raise CliError(f"--plot: {file} is neither a .png nor a .svg file", "name it so", code=INVALID)
    if not file.absolute().parent.is_dir():
        raise CliError(f"--plot: the folder of {file} does not exist", "create it first", code=INVALID)
    if importlib.util.find_spec("matplotlib") is None:
        raise CliError(f"--plot {file} needs matplotlib: pip install 'rlrun[plot]'", code=INVALID)


def write_plot(file: Path, title: str, charts: Sequence[Chart]) -> None:
    """Draw the charts below one another. Values that are not finite are left out. Raises CliError."""
    if not 1 <= len(charts) <= MAX_CHARTS:
        raise CliError(
            f"--plot: a file has 1 to {MAX_CHARTS} metrics, and {len(charts)} were found", "name them with -m"
        )
    # Not pyplot, which searches for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT * len(charts) + 0.6), dpi=DOTS_PER_INCH, layout="constrained")
    figure.suptitle(_literal(title))
    rows = figure.subplots(len(charts), 1, squeeze=False)[:, 0]
    for axes, (name, points) in zip(rows, charts, strict=True):
        shown = [(step, value) for step, value in points if math.isfinite(value)]
        marker = "." if len(shown) < FEW_POINTS else ""
        axes.plot([step for step, _ in shown], [value for _, value in shown], marker=marker)
        axes.set_title(_literal(name), loc="left", fontsize="medium")
        axes.grid(alpha=0.3)
    rows[-1].set_xlabel("step")
    try:
        figure.savefig(file, format=_format(file))
    except OSError as problem:
        raise CliError(f"--plot: {file} cannot be written: {problem.strerror}", "name another file") from problem


def _format(file: Path) -> str:
    return file.suffix[1:].lower()


def _literal(text: str) -> str:
    # matplotlib reads what stands between two dollar signs as a formula.
    return text.replace("$", r"\$")
