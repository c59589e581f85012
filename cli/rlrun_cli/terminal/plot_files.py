"""Charts as PNG and SVG files. Requires the package's extra `plot`, for matplotlib."""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

from rlrun_cli.terminal.errors import INVALID, CliError

FILE_OPTION = "--plot-file"
"""Hidden option that receives the file given after --plot."""
FORMATS = ("png", "svg")
IMAGES = frozenset({".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"})
"""File extensions by which a word after --plot is recognized as a file. A run's name may contain dots too."""
MAX_CHARTS = 64
WIDTH, HEIGHT = 8.0, 2.4
"""Size of one chart in inches."""
DOTS_PER_INCH = 150
FEW_POINTS = 50
"""Number of points below which a chart marks each point of its line."""

Chart = tuple[str, Sequence[tuple[float, float]]]
"""Title, and pairs of step and value."""


def with_plot_file(words: Sequence[str]) -> list[str]:
    """Move the file name after `--plot` to a separate option.

    `--plot` alone draws in the terminal and must not consume the next word, such as the run's name.
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
    """Raise CliError if the file cannot be written as an image. Called before any data is read."""
    if _format(file) not in FORMATS:
        raise CliError(f"--plot: {file} is neither a .png nor a .svg file", "use one of these extensions", code=INVALID)
    if not file.absolute().parent.is_dir():
        raise CliError(f"--plot: the folder of {file} does not exist", "create it first", code=INVALID)
    if importlib.util.find_spec("matplotlib") is None:
        raise CliError(f"--plot {file} needs matplotlib: pip install 'rlrun[plot]'", code=INVALID)


def write_plot(file: Path, title: str, charts: Sequence[Chart]) -> None:
    """Draw the charts into the file, one below the other. Non-finite values are omitted.

    Raises CliError if the number of charts is not 1 to MAX_CHARTS, or if the file cannot be written.
    """
    if not 1 <= len(charts) <= MAX_CHARTS:
        raise CliError(
            f"--plot: a file can show 1 to {MAX_CHARTS} metrics, but {len(charts)} were selected",
            "select metrics with -m",
        )
    # Avoid pyplot, which searches for a display.
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
        raise CliError(f"--plot: {file} cannot be written: {problem.strerror}", "use another file") from problem


def _format(file: Path) -> str:
    return file.suffix[1:].lower()


def _literal(text: str) -> str:
    # matplotlib interprets text between two dollar signs as a formula.
    return text.replace("$", r"\$")
