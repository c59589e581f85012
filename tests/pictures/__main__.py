"""`make pictures`: a recording and pictures of the page, from two real runs on the local cluster.

Replaces docs/images/page-*.png, docs/images/page-recording.webp and docs/images/page.json, which says what they show.
"""

import io
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from PIL import Image
from playwright.sync_api import Browser, TimeoutError, expect

from demo.__main__ import git, metrics_of
from demo.cluster import local_cluster
from demo.install import EXAMPLES, ROOT, S3Access, install_platform
from demo.kubectl import Kubectl, Object, wait_for
from demo.watch import TERMINAL, Follower, RunFailed, describe, pods
from tests.e2e.server_clients import api_key, server_on_loopback
from tests.support.browser import WatchedPage, chromium, watched_page

IMAGES = ROOT / "docs" / "images"
RECORDING = "page-recording.webp"
NAMESPACE = "research"
RUN, OTHER = "reverse-text", "reverse-text-small-steps"
EVALUATION: dict[str, Any] = {
    "val": {"numExamples": 32, "interval": 5},
    "eval": {
        "interval": 10,
        "numExamples": 16,
        "rolloutsPerExample": 2,
        "env": [{"id": "rlrun/reverse-text", "name": "longer-texts", "args": {"min_length": 11, "max_length": 16}}],
    },
}
CHANGES = {RUN: EVALUATION, OTHER: {**EVALUATION, "learningRate": 1e-4, "batchSize": 64}}
"""Fields of the spec that differ from the example, by run."""
RUN_SECONDS = 1200.0
"""Longest time for a run, and for the deployment of an adapter."""
SHOWN_SECONDS = 15.0
"""Length of the recording."""
MAX_FRAMES = 120
WIDTH, HEIGHT, PHONE = 1280, 800, 360
LOADED_MS, OPEN_MS, SETTLE_MS = 60_000, 20_000, 2000
"""Longest time until a view has its data, and for one attempt; time for charts to be drawn."""
MAX_LOADS = 5
"""Pods that come and go end requests of Chromium, among them those for modules of a view."""
QUESTIONS, BETWEEN_QUESTIONS_MS = 5, 5000
"""Pools are found by name a little after they are ready."""


@dataclass(frozen=True)
class Shot:
    """View to take a picture of. `{run}`, `{other}`, `{adapter}` and `{step}` stand for what was made."""

    name: str
    view: str
    ready: str
    """Selector of what the view shows when it has its data."""
    height: int = HEIGHT
    width: int = WIDTH
    scheme: str = "light"
    act: Callable[[WatchedPage], None] | None = None
    """Actions of a user before the picture."""

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"page-{self.name}.png"


def ask(watched: WatchedPage) -> None:
    """Send a message and wait for the answers of the adapter and of its base model.

    Raises RuntimeError if there was none after some questions, because the pool was not ready.
    """
    page = watched.page
    watched.expect(503, "/v1/chat/completions")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Tokens at most").fill("24")
    for _ in range(QUESTIONS):
        page.get_by_label("Message", exact=True).fill("rimofa tul")
        page.get_by_role("button", name="Send").click()
        ended = page.locator(".message.assistant").filter(has=page.locator(".problem, .sub"))
        expect(ended).to_have_count(2, timeout=LOADED_MS)
        if page.locator(".message.assistant .problem").count() == 0:
            return
        page.wait_for_timeout(BETWEEN_QUESTIONS_MS)
        page.get_by_role("button", name="New conversation").click()
    raise RuntimeError("the adapter does not answer")


LIST = Shot("runs", f"/runs?ns={NAMESPACE}", ".trend svg", height=480)
SHOTS = (
    Shot("run", "/runs/{run}", "canvas", 1000),
    Shot("run-dark", "/runs/{run}", "canvas", 1000, scheme="dark"),
    Shot("samples", "/runs/{run}/samples?step={step}&view=side", ".siblings article", 1000),
    Shot("events", "/runs/{run}/events", ".timeline li"),
    Shot("phone", "/runs/{run}", "canvas", 1160, PHONE),
    Shot("compare", "/compare?run={run}&run={other}", "canvas", 1000),
    Shot("artifacts", "/runs/{run}/artifacts", ".phase.deployed"),
    Shot("chat", f"/chat?ns={NAMESPACE}&adapter={{adapter}}&base=1", "form textarea", act=ask),
)


def main() -> None:
    """Make everything. Fails if the page reports an error; pictures made until then are written."""
    kubectl, s3 = local_cluster()
    install_platform(kubectl, s3, print)
    kubectl.ensure_namespace(NAMESPACE)
    kubectl("delete", "rlruns,rlcheckpoints,rladapters", "--all", "-n", NAMESPACE, "--timeout=170s", timeout=180)
    key = api_key(kubectl, NAMESPACE)
    with server_on_loopback(kubectl) as url, chromium() as browser:
        with user(browser, url, key, viewport={"width": 1200, "height": 750}) as watched:
            first = record(kubectl, watched)
        start(kubectl, OTHER)
        wait_for_run(kubectl, OTHER, lambda run: step_of(run) >= 5)
        take(browser, url, key, [LIST], IMAGES)
        second = wait_for_run(kubectl, OTHER)
        adapter = deploy(kubectl)
        names = {"run": f"{NAMESPACE}/{RUN}", "other": f"{NAMESPACE}/{OTHER}", "adapter": adapter}
        take(browser, url, key, SHOTS, IMAGES, **names, step=str(step_of(first)))
    runs = [facts_of(run, s3) for run in (first, second)]
    account = {"command": "make pictures", "commit": git("rev-parse", "HEAD"), "runs": runs}
    (IMAGES / "page.json").write_text(json.dumps(account, indent=2) + "\n")


def record(kubectl: Kubectl, watched: WatchedPage) -> Object:
    """Start the first run and record its page until it is completed, then its last rollouts. Returns the run."""
    frames: list[bytes] = []
    start(kubectl, RUN)
    open_view(watched, f"/runs/{NAMESPACE}/{RUN}", ".empty, canvas")

    def look(run: Object) -> None:
        frames.append(watched.page.screenshot())
        # Waiting for pods is short in the recording.
        watched.page.wait_for_timeout(1000 if step_of(run) else 5000)

    run = wait_for_run(kubectl, RUN, look=look)
    expect(watched.page.locator(".run-header .phase.completed")).to_be_visible(timeout=LOADED_MS)
    frames += [watched.page.screenshot()] * 8
    open_view(watched, f"/runs/{NAMESPACE}/{RUN}/samples?step={step_of(run)}&view=side", ".siblings article")
    frames += [watched.page.screenshot()] * 16
    write_recording(frames, IMAGES / RECORDING)
    return run


def write_recording(frames: list[bytes], path: Path) -> None:
    """Write PNG files as an animated WebP of SHOWN_SECONDS without end. Of many, MAX_FRAMES are kept evenly."""
    count = min(len(frames), MAX_FRAMES)
    kept = [frames[at * (len(frames) - 1) // max(1, count - 1)] for at in range(count)]
    images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in kept]
    each = round(1000 * SHOWN_SECONDS / count)
    images[0].save(
        path, "WEBP", save_all=True, append_images=images[1:], duration=each, loop=0, minimize_size=True, quality=75
    )


def run_object(name: str) -> Object:
    """Return the RLRun: the example with its changes."""
    run: Object = yaml.safe_load((EXAMPLES / "reverse-text.yaml").read_text())
    return {**run, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": run["spec"] | CHANGES[name]}


def start(kubectl: Kubectl, name: str) -> None:
    """Create a run and wait until it exists."""
    kubectl.apply(run_object(name))
    wait_for(f"rlrun {name}", lambda: kubectl.get("rlrun", name, NAMESPACE), 30)


def wait_for_run(
    kubectl: Kubectl,
    name: str,
    is_wanted: Callable[[Object], bool] = lambda run: run.get("status", {}).get("phase") == "Completed",
    look: Callable[[Object], None] = lambda _: time.sleep(1),
) -> Object:
    """Call `look` with a run until it is as wanted, and return it. Raises RunFailed if it ends or takes too long."""
    follower, deadline = Follower(print), time.monotonic() + RUN_SECONDS
    while True:
        run = kubectl.get("rlrun", name, NAMESPACE) or {}
        if run:
            follower.see(run)
        if is_wanted(run):
            return run
        if run.get("status", {}).get("phase") in TERMINAL or time.monotonic() > deadline:
            raise RunFailed(f"rlrun {name} is not as wanted:\n{describe(run)}\n{pods(kubectl, NAMESPACE)}")
        look(run)


def step_of(run: Object) -> int:
    """Return the last step of a run."""
    return int(run.get("status", {}).get("progress", {}).get("step") or 0)


def deploy(kubectl: Kubectl) -> str:
    """Deploy the last adapter of the first run. Returns its name when the pool serves it."""

    def is_ready() -> list[Object] | None:
        found = [o for o in kubectl.list("rladapters", NAMESPACE) if o["spec"]["runName"] == RUN]
        return found if found and all(o.get("status", {}).get("phase") == "Ready" for o in found) else None

    def is_deployed() -> bool | None:
        status = (kubectl.get("rladapter", name, NAMESPACE) or {}).get("status", {})
        return status.get("deploymentState") == "Deployed" or None

    found = wait_for("the adapters", is_ready, RUN_SECONDS)
    name = str(max(found, key=lambda o: o["spec"]["step"])["metadata"]["name"])
    kubectl("patch", "rladapter", name, "-n", NAMESPACE, "--type=merge", "-p", '{"spec":{"deployed":true}}')
    wait_for("the deployment", is_deployed, RUN_SECONDS)
    return name


def facts_of(run: Object, s3: S3Access) -> dict[str, Any]:
    """Return what page.json says of a run."""
    name, rewards = run["metadata"]["name"], [line["reward/mean"] for line in metrics_of(s3, run)]
    return {
        "name": name,
        "example": "examples/reverse-text.yaml",
        "changes": CHANGES[name],
        "steps": step_of(run),
        "reward_first": round(rewards[0], 4),
        "reward_last": round(rewards[-1], 4),
    }


@contextmanager
def user(browser: Browser, url: str, token: str, **options: Any) -> Iterator[WatchedPage]:
    """Open the page in a profile of its own, logged in. Raises AssertionError at the end if it reported an error."""
    with watched_page(browser, url, **options) as found:
        found.log_in(token)
        yield found


def take(browser: Browser, url: str, token: str, shots: Iterable[Shot], folder: Path, **names: str) -> None:
    """Write pictures into a folder, with 256 colors. `names` stand in the views."""
    for shot in shots:
        scale, touch = (2, True) if shot.width == PHONE else (1.5, False)
        size = {"width": shot.width, "height": shot.height}
        options = {"color_scheme": shot.scheme, "viewport": size, "device_scale_factor": scale, "has_touch": touch}
        with user(browser, url, token, **options) as watched:
            open_view(watched, shot.view.format(**names), shot.ready)
            if shot.act is not None:
                shot.act(watched)
            # A run that goes on is polled: the network is never idle.
            expect(watched.page.locator(".loading")).to_have_count(0, timeout=LOADED_MS)
            watched.page.wait_for_timeout(SETTLE_MS)
            image = Image.open(io.BytesIO(watched.page.screenshot())).convert("RGB")
        # The median cut loses colors of few pixels, such as those of a single button.
        image.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(folder / shot.file, optimize=True)


def open_view(watched: WatchedPage, view: str, ready: str) -> None:
    """Open a view until the selector `ready` finds something. Raises playwright's TimeoutError."""
    for left in reversed(range(MAX_LOADS)):
        watched.open(view)
        try:
            watched.page.locator(ready).first.wait_for(timeout=OPEN_MS)
            return
        except TimeoutError:
            if not left:
                raise


if __name__ == "__main__":
    main()
