"""The recorder and the pictures of `make pictures`, with the seeded runs in place of real ones."""

import io
import uuid
from pathlib import Path

import pytest
from kubernetes import client
from PIL import Image, ImageChops
from playwright.sync_api import Browser, expect

from tests.browser.conftest import LEARNING, OTHER, STEPS, Server
from tests.browser.test_live import LOST_MS, LiveRun, progress
from tests.pictures.__main__ import OPEN_RUN
from tests.pictures.image_size import MAX_BYTES
from tests.pictures.recording import Recorder, write_recording
from tests.pictures.screenshots import PHONE, Shot, open_view, take, user
from tests.support.seaweedfs import S3Server
from tests.support.seeded_runs import SeededRuns

HEADER = 260
"""Height of the picture's part with the state of the run."""


def differs(first: bytes, second: bytes, box: tuple[int, int, int, int] | None = None) -> bool:
    """Return whether two pictures differ, in a part of them."""
    pictures = [Image.open(io.BytesIO(png)).convert("RGB").crop(box) for png in (first, second)]
    return ImageChops.difference(pictures[0], pictures[1]).getbbox() is not None


def test_a_recording_shows_a_run_that_goes_on(
    browser: Browser, server: Server, api: client.ApiClient, s3_server: S3Server, tmp_path: Path
) -> None:
    name, problems = f"recorded-{uuid.uuid4().hex[:6]}", list[str]()
    seeded = SeededRuns(api, s3_server)
    layout = seeded.run(server.namespace, name, {"phase": "Pending", "progress": progress(0)})
    live = LiveRun(api, server.namespace, name, layout)
    options = {"viewport": {"width": 1200, "height": 750}}
    try:
        with user(browser, server.url, server.tokens["editor"], problems, **options) as watched:
            page, recorder = watched.page, Recorder(watched.page)
            open_view(watched, server.view(name), OPEN_RUN)
            expect(page.locator(".run-header .phase.pending")).to_be_visible()
            recorder.scene("Pending", 1)
            recorder.take_for(1)
            seeded.metrics(layout, 10)
            live.set(phase="Running", progress=progress(10))
            expect(page.get_by_text("step 10/40")).to_be_visible(timeout=LOST_MS)
            page.locator("canvas").first.wait_for(timeout=LOST_MS)
            recorder.scene("Running", 1)
            recorder.take_for(1)
            live.set(phase="Completed", progress=progress(40))
            expect(page.locator(".run-header .phase.completed")).to_be_visible(timeout=LOST_MS)
            recorder.scene("Completed", 1)
            recorder.take()
    finally:
        live.delete()
    assert problems == []
    waiting, running, completed = recorder.scenes
    width, height = Image.open(io.BytesIO(waiting.frames[0])).size
    assert (width, height) == (1200, 750)
    header, charts = (0, 0, width, HEADER), (0, HEADER, width, height)
    assert differs(waiting.frames[-1], running.frames[-1], header), "phase and step"
    assert differs(waiting.frames[-1], running.frames[-1], charts), "charts in place of a message"
    assert differs(running.frames[-1], completed.frames[-1], header)
    path = tmp_path / "recording.webp"
    count = write_recording(recorder.scenes, path)
    assert count == sum(len(scene.frames) for scene in recorder.scenes)
    assert Image.open(path).n_frames == count


@pytest.mark.parametrize(
    ("shot", "width"),
    [
        (Shot("runs", "/runs?ns={ns}", ".trend svg", height=480), 1920),
        (Shot("run", "/runs/{ns}/{run}", "canvas", height=1000), 1920),
        (Shot("run-dark", "/runs/{ns}/{run}", "canvas", height=1000, scheme="dark"), 1920),
        (Shot("samples", f"/runs/{{ns}}/{{run}}/samples?step={STEPS}&view=side", ".siblings article"), 1920),
        (Shot("events", "/runs/{ns}/{run}/events", ".timeline li"), 1920),
        (Shot("phone", "/runs/{ns}/{run}", "canvas", width=PHONE, height=1160), 720),
        (Shot("compare", "/compare?run={ns}/{run}&run={ns}/{other}", "canvas", height=1000), 1920),
        (Shot("artifacts", "/runs/{ns}/{run}/artifacts", ".artifacts .phase.ready"), 1920),
    ],
    ids=lambda value: value.name if isinstance(value, Shot) else "",
)
def test_a_view_becomes_a_picture(browser: Browser, server: Server, tmp_path: Path, shot: Shot, width: int) -> None:
    problems: list[str] = []
    view = shot.view.format(ns=server.namespace, run=LEARNING, other=OTHER)
    changed = Shot(shot.name, view, shot.ready, shot.height, shot.scheme, shot.width)
    made = take(browser, server.url, server.tokens["editor"], [changed], tmp_path, problems)
    assert problems == []
    assert made == {f"page-{shot.name}.png": changed}
    path = tmp_path / changed.file
    assert path.stat().st_size <= MAX_BYTES
    assert Image.open(path).width == width
