"""How long frames are shown, which of many are kept, and the file that they make."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from playwright.sync_api import Error

from tests.pictures.image_size import TooLarge
from tests.pictures.recording import MAX_FRAMES_PER_SECOND, MAX_LOST, Recorder, Scene, durations, kept, write_recording
from tests.pictures.recording import timeline as timeline_of


def png(color: str) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (40, 30), color).save(sink, "PNG")
    return sink.getvalue()


def scene(name: str, shown_seconds: float, *colors: str) -> Scene:
    return Scene(name, shown_seconds, [float(at) for at in range(len(colors))], [png(color) for color in colors])


class FakePage:
    """Fails to give some screenshots."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.now = 0.0

    def screenshot(self) -> bytes:
        self.failures -= 1
        if self.failures >= 0:
            raise Error("the browser is busy")
        return png("white")

    def wait_for_timeout(self, milliseconds: float) -> None:
        self.now += milliseconds / 1000


def recorder(page: FakePage) -> Recorder:
    found = Recorder(page, lambda: page.now)  # type: ignore[arg-type]
    found.scene("only", 2)
    return found


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=60), st.floats(0.5, 20))
def test_the_frames_of_a_scene_fill_its_length(times: list[float], shown: float) -> None:
    found = durations(sorted(times), shown)
    assert len(found) == len(times)
    assert min(found) >= 1
    assert sum(found) == pytest.approx(1000 * shown, abs=2 * len(times))


@given(st.integers(1, 2000), st.floats(0.5, 20))
def test_of_many_frames_the_first_and_the_last_are_kept(count: int, shown: float) -> None:
    found = kept(count, shown)
    assert found[0] == 0
    assert found[-1] == count - 1
    assert len(found) <= max(2, shown * MAX_FRAMES_PER_SECOND)
    assert found == sorted(set(found))


def test_a_frame_is_shown_in_proportion_to_the_time_until_the_next() -> None:
    assert durations([0.0, 3.0, 4.0], 6.0) == [3000, 1000, 2000]


def test_a_scene_without_frames_is_left_out() -> None:
    assert timeline_of([Scene("empty", 3)]) == []


def test_the_file_has_all_frames_and_their_lengths(tmp_path: Path) -> None:
    scenes = [scene("waiting", 1, "white", "red"), scene("learning", 2, "blue", "green", "black")]
    assert write_recording(scenes, tmp_path / "all.webp") == 5
    image = Image.open(tmp_path / "all.webp")
    lengths, colors = [], []
    for at in range(image.n_frames):
        image.seek(at)
        image.load()
        lengths.append(image.info["duration"])
        colors.append(image.convert("RGB").getpixel((0, 0)))
    assert lengths == [500, 500, 667, 667, 667]
    assert colors == [(255, 255, 255), (255, 0, 0), (0, 0, 255), (0, 128, 0), (0, 0, 0)]
    assert image.info["loop"] == 0


def test_a_file_that_cannot_be_small_enough_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match=r"all\.webp has .* bytes in the lowest quality, more than 40"):
        write_recording([scene("one", 1, "white", "red")], tmp_path / "all.webp", limit=40)
    assert not (tmp_path / "all.webp").exists()


def test_a_recorder_takes_frames_for_a_time() -> None:
    found = recorder(FakePage(0))
    found.take_for(3)
    assert found.scenes[0].times == [0.0, 1.0, 2.0, 3.0]
    assert found.scenes[0].seconds == 3.0


def test_frames_that_the_browser_does_not_give_are_left_out_up_to_a_bound() -> None:
    found = recorder(FakePage(2))
    found.take_for(3)
    assert found.scenes[0].times == [2.0, 3.0]
    lost = recorder(FakePage(MAX_LOST + 5))
    with pytest.raises(Error, match="busy"):
        lost.take_for(1000)
