"""Reward curve of a run, for the terminal and as SVG."""

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], low: float = 0.0, high: float = 1.0) -> str:
    """Return a line of bars, one character per value."""
    span = high - low or 1.0
    return "".join(BARS[min(len(BARS) - 1, max(0, int((v - low) / span * len(BARS))))] for v in values)


def svg(rewards: Sequence[float], title: str, width: int = 640, height: int = 320) -> str:
    """Return the curve with axes as SVG text. `rewards[i]` is the mean reward of step i."""
    left, right, top, bottom = 48, 16, 36, 40
    inner_width, inner_height = width - left - right, height - top - bottom

    def x(step: float) -> float:
        return left + inner_width * step / max(1, len(rewards) - 1)

    def y(reward: float) -> float:
        return top + inner_height * (1 - reward)

    points = " ".join(f"{x(i):.1f},{y(r):.1f}" for i, r in enumerate(rewards))
    rules = "".join(
        f'<line x1="{left}" x2="{width - right}" y1="{y(r):.1f}" y2="{y(r):.1f}" stroke="#ddd"/>'
        f'<text x="{left - 8}" y="{y(r) + 4:.1f}" text-anchor="end">{r:.1f}</text>'
        for r in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    )
    marks = "".join(
        f'<text x="{x(s):.1f}" y="{height - bottom + 18}" text-anchor="middle">{s}</text>'
        for s in range(0, len(rewards), max(1, len(rewards) // 8))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{left}" y="20" font-size="14">{title}</text>{rules}{marks}'
        f'<text x="{left + inner_width / 2}" y="{height - 6}" text-anchor="middle">step</text>'
        f'<polyline points="{points}" fill="none" stroke="#1565c0" stroke-width="2"/></svg>\n'
    )
