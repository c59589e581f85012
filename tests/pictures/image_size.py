"""PNG files that are small enough for a README."""

import io
from pathlib import Path

from PIL import Image

MAX_BYTES = 300_000
COLORS = (None, 256, 128, 64)
"""Sizes of the palette. None: all colors."""
SHRINK = 0.8
MIN_WIDTH = 640


class TooLarge(Exception):
    """An image that cannot be made small enough."""


def write_png(png: bytes, path: Path, limit: int = MAX_BYTES) -> None:
    """Write an image with all its colors, with fewer if that is too large, and smaller if that is too large as well.

    Raises:
        TooLarge: The file is larger than `limit` in bytes.
    """
    image = Image.open(io.BytesIO(png)).convert("RGB")
    while True:
        for colors in COLORS:
            sink = io.BytesIO()
            _with_colors(image, colors).save(sink, "PNG", optimize=True)
            if sink.tell() <= limit:
                path.write_bytes(sink.getvalue())
                return
        width, height = round(image.width * SHRINK), round(image.height * SHRINK)
        if width < min(MIN_WIDTH, image.width):
            raise TooLarge(f"{path.name} has {sink.tell():,} bytes at {image.width} pixels, more than {limit:,}.")
        image = image.resize((width, height), Image.Resampling.LANCZOS)


def _with_colors(image: Image.Image, colors: int | None) -> Image.Image:
    if colors is None:
        return image
    # The median cut loses colors of few pixels, such as those of a single button.
    return image.quantize(colors, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
