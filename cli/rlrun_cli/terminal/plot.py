"""Pure functions that draw line charts for the terminal, in braille characters of 2 x 4 dots."""

import itertools
import math
from collections.abc import Sequence

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each dot in a character, by row and column."""
WIDTH, HEIGHT = 64, 10
"""Size of a chart in characters, without labels."""


def plot(title: str, points: Sequence[tuple[float, float]], width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Return the lines of a chart of (x, y) points, labeled with their extremes. Non-finite values are omitted."""
    shown = [(x, y) for x, y in points if math.isfinite(y)]
    if not shown:
        return [f"{title}: no values"]
    xs, ys = [x for x, _ in shown], [y for _, y in shown]
    low, high = min(ys), max(ys)
    dots = _dots(shown, width * 2, height * 4)
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"} if high > low else {height // 2: f"{low:.4g}"}
    margin = max(len(label) for label in labels.values())
    lines = [title]
    for row in range(height):
        cells = "".join(chr(BRAILLE + _bits(dots, column, row)) for column in range(width))
        lines.append(f"{labels.get(row, ''):>{margin}} │{cells}".rstrip(f" {chr(BRAILLE)}"))
    first, last = f"{min(xs):g}", f"{max(xs):g}" if max(xs) > min(xs) else ""
    lines.append(" " * margin + " └" + "─" * width)
    lines.append(" " * (margin + 2) + (first + last.rjust(width - len(first))).rstrip())
    return lines


def _dots(points: Sequence[tuple[float, float]], width: int, height: int) -> set[tuple[int, int]]:
    """Return the dots on the line through the points, as column and row from the top."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    placed = [(_scale(x, min(xs), max(xs), width), height - 1 - _scale(y, min(ys), max(ys), height)) for x, y in points]
    dots = set(placed)
    for (left, start), (right, end) in itertools.pairwise(placed):
        steps = max(abs(right - left), abs(end - start))
        for step in range(1, steps):
            dots.add((left + round((right - left) * step / steps), start + round((end - start) * step / steps)))
    return dots


def _scale(value: float, low: float, high: float, count: int) -> int:
    return round((value - low) / (high - low) * (count - 1)) if high > low else count // 2


def _bits(dots: set[tuple[int, int]], column: int, row: int) -> int:
    return sum(DOTS[y][x] for y in range(4) for x in range(2) if (column * 2 + x, row * 4 + y) in dots)
