"""Pictures below a size: as they are, with fewer colors, or smaller."""

import io
import os
from pathlib import Path

import pytest
from PIL import Image

from tests.pictures.image_size import TooLarge, write_png


def noise(width: int, height: int) -> bytes:
    sink = io.BytesIO()
    Image.frombytes("RGB", (width, height), os.urandom(3 * width * height)).save(sink, "PNG")
    return sink.getvalue()


@pytest.mark.parametrize(
    ("limit", "mode", "is_smaller"),
    [(400_000, "RGB", False), (100_000, "P", False), (50_000, "P", True)],
    ids=["all colors", "a palette", "fewer pixels"],
)
def test_a_picture_loses_no_more_than_it_must(tmp_path: Path, limit: int, mode: str, is_smaller: bool) -> None:
    path = tmp_path / "picture.png"
    write_png(noise(800, 100), path, limit)
    assert path.stat().st_size <= limit
    found = Image.open(path)
    assert found.mode == mode
    assert (found.width < 800) is is_smaller


def test_a_picture_that_would_be_too_small_to_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match=r"picture\.png has .* bytes at \d+ pixels"):
        write_png(noise(800, 100), tmp_path / "picture.png", 1000)
    assert not (tmp_path / "picture.png").exists()
