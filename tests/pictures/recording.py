"""Recording of the page: frames of some scenes, put together as an animated WebP that is played faster than life.

A scene has its own length in the recording, whatever time it took: waiting for pods is short, learning is long.
"""

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Error, Page

from tests.pictures.image_size import TooLarge

EVERY_SECONDS = 1.0
MAX_FRAMES_PER_SECOND = 8
"""Frames of a scene in a second of the recording. More would cost bytes that show nothing."""
MAX_LOST = 10
"""Frames that the browser may fail to give while the machine is busy."""
MAX_BYTES = 2_500_000
QUALITIES = (None, 90, 75, 60, 45)
"""Qualities of WebP, the best first. None: without loss."""


@dataclass
class Scene:
    """Part of a recording."""

    name: str
    shown_seconds: float
    """Length in the recording."""
    times: list[float] = field(default_factory=list)
    """When each frame was taken, in seconds of the clock."""
    frames: list[bytes] = field(default_factory=list)
    """PNG files."""

    @property
    def seconds(self) -> float:
        """Time between the first frame and the last."""
        return self.times[-1] - self.times[0] if self.times else 0.0


class Recorder:
    """Takes frames of a page."""

    def __init__(self, page: Page, clock: Callable[[], float] = time.monotonic) -> None:
        self.scenes: list[Scene] = []
        self._page = page
        self._clock = clock
        self._lost = 0

    def scene(self, name: str, shown_seconds: float) -> None:
        """Begin a scene. Frames follow in it until the next begins."""
        self.scenes.append(Scene(name, shown_seconds))

    def take(self) -> None:
        """Take a frame. Raises playwright's Error if the browser fails to give too many."""
        scene = self.scenes[-1]
        try:
            frame = self._page.screenshot()
        except Error:
            self._lost += 1
            if self._lost > MAX_LOST:
                raise
            return
        scene.times.append(self._clock())
        scene.frames.append(frame)

    def take_for(self, seconds: float) -> None:
        """Take a frame, and others for a time."""
        end = self._clock() + seconds
        self.take()
        while self._clock() < end:
            self.pause()
            self.take()

    def pause(self) -> None:
        """Let the page go on until the next frame is due."""
        self._page.wait_for_timeout(EVERY_SECONDS * 1000)


def kept(count: int, shown_seconds: float) -> list[int]:
    """Return the numbers of those of `count` frames that a scene shows: the first, the last, and even steps between."""
    most = max(2, int(shown_seconds * MAX_FRAMES_PER_SECOND))
    if count <= most:
        return list(range(count))
    return [round(at * (count - 1) / (most - 1)) for at in range(most)]


def durations(times: Sequence[float], shown_seconds: float) -> list[int]:
    """Return for how many milliseconds each frame of a scene is shown, in proportion to the time until the next.

    The last frame is shown as long as the others are on average.
    """
    gaps = [max(0.0, after - before) for before, after in pairwise(times)]
    gaps.append(sum(gaps) / len(gaps) if gaps else 1.0)
    whole = sum(gaps)
    if whole <= 0:
        return [round(1000 * shown_seconds / len(times)) for _ in times]
    return [max(1, round(1000 * shown_seconds * gap / whole)) for gap in gaps]


def timeline(scenes: Sequence[Scene]) -> list[tuple[bytes, int]]:
    """Return the frames of all scenes with the milliseconds that each is shown."""
    found: list[tuple[bytes, int]] = []
    for scene in scenes:
        numbers = kept(len(scene.frames), scene.shown_seconds)
        if numbers:
            shown = durations([scene.times[number] for number in numbers], scene.shown_seconds)
            found.extend((scene.frames[number], shown[at]) for at, number in enumerate(numbers))
    return found


def write_recording(scenes: Sequence[Scene], path: Path, limit: int = MAX_BYTES) -> int:
    """Write the recording as an animated WebP without end, and return its number of frames.

    Raises:
        TooLarge: The file is larger than `limit` in bytes in every quality.
    """
    frames = timeline(scenes)
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png, _ in frames]
    shown = [milliseconds for _, milliseconds in frames]
    size = 0
    for quality in QUALITIES:
        sink = io.BytesIO()
        loss: dict[str, Any] = {"lossless": True} if quality is None else {"quality": quality}
        images[0].save(
            sink, "WEBP", save_all=True, append_images=images[1:], duration=shown, loop=0, minimize_size=True, **loss
        )
        size = len(sink.getvalue())
        if size <= limit:
            path.write_bytes(sink.getvalue())
            return len(images)
    raise TooLarge(f"{path.name} has {size:,} bytes in the lowest quality, more than {limit:,}. Show fewer frames.")
