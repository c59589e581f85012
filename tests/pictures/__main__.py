"""`make pictures`: a recording and pictures of the page, from two real runs on the local cluster.

Replaces docs/images/page-*.png, docs/images/page-recording.webp and docs/images/page.json, which says what they show.
Exits 1 if the page reported an error, or a picture is missing; what was made until then is written all the same.
"""

import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect

from demo.__main__ import git, metrics_of
from demo.cluster import local_cluster
from demo.install import EXAMPLES, ROOT, S3Access, install_platform
from demo.kubectl import Kubectl, Object
from demo.watch import Follower
from tests.e2e.server_clients import api_key, server_on_loopback
from tests.pictures.real_runs import (
    CHANGES,
    EXAMPLE,
    NAMESPACE,
    OTHER,
    RUN,
    look_until_completed,
    newest_adapter,
    phase_of,
    remove_runs,
    run_object,
    step_of,
    wait_until_deployed,
)
from tests.pictures.recording import Recorder, write_recording
from tests.pictures.screenshots import LOADED_MS, PHONE, Shot, open_view, take, user
from tests.support.browser import WatchedPage, chromium

COMMAND = "make pictures"
IMAGES = ROOT / "docs" / "images"
RECORDING, ACCOUNT = "page-recording.webp", "page.json"
SOURCES = (".", f":!{IMAGES.relative_to(ROOT)}")
"""Files that pictures are made from, as git names them: all but the pictures."""
RECORDED_SIZE = {"width": 1440, "height": 900}
RECORDED_SCALE = 1200 / 1440
QUESTION = "rimofa tul"
"""Text like those of the environment."""
ANSWER_TOKENS = "24"
QUESTIONS = 5
BETWEEN_QUESTIONS_MS = 5000
"""Pools are found by name a little after they are ready."""
OPEN_RUN = ".empty, canvas"
"""Selector of what a run shows below its state: that it has no metrics yet, or its charts."""
LISTED_STEP = 5
"""Step of the second run at which the picture of the list is taken."""

Say = Callable[[str], None]


@dataclass
class Pictures:
    """Everything that was made, before it replaces the pictures of the repository."""

    kubectl: Kubectl
    s3: S3Access
    url: str
    key: str
    browser: Browser
    folder: Path
    say: Say
    problems: list[str] = field(default_factory=list)
    shots: dict[str, Shot] = field(default_factory=dict)
    recording: dict[str, Any] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def take(self, *shots: Shot) -> None:
        """Take pictures."""
        for shot in shots:
            self.say(f"picture {shot.file}")
            self.shots |= take(self.browser, self.url, self.key, [shot], self.folder, self.problems)

    def add_run(self, run: Object) -> None:
        """Note what a run has reached."""
        self.runs.append(run_facts(run, [line["reward/mean"] for line in metrics_of(self.s3, run)]))


def main() -> int:
    """Make everything. Returns 0 if nothing is missing."""
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", flush=True)

    folder = ROOT / "build" / "pictures"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kubectl, s3 = local_cluster()
    install_platform(kubectl, s3, say)
    remove_runs(kubectl)
    key = api_key(kubectl, NAMESPACE)
    failed = False
    with server_on_loopback(kubectl) as url, chromium() as browser:
        made = Pictures(kubectl, s3, url, key, browser, folder, say)
        try:
            make(made)
        except Exception:
            traceback.print_exc()
            failed = True
    replace(folder, IMAGES, account(made), is_complete=not failed)
    for problem in dict.fromkeys(made.problems):
        print(f"the page reported: {problem}", file=sys.stderr)
    failed = failed or bool(made.problems)
    say(f"{'FAILED; some' if failed else 'all'} pictures are in {IMAGES.relative_to(ROOT)}")
    return 1 if failed else 0


def make(made: Pictures) -> None:
    """Record the first run, and take pictures of both."""
    record(made)
    run = f"{NAMESPACE}/{RUN}"
    made.take(
        Shot("run", f"/runs/{run}", "canvas", height=1000),
        Shot("run-dark", f"/runs/{run}", "canvas", height=1000, scheme="dark"),
        Shot("samples", samples_view(made.runs[0]["steps"]), ".siblings article", height=1000),
        Shot("events", f"/runs/{run}/events", ".timeline li"),
        Shot("phone", f"/runs/{run}", "canvas", width=PHONE, height=1160),
    )
    watch_other(made)
    made.take(Shot("compare", f"/compare?run={run}&run={NAMESPACE}/{OTHER}", "canvas", height=1000))
    deploy_and_ask(made)


def record(made: Pictures) -> None:
    """Start the first run and record its page until it is completed, then its last rollouts."""
    options = {"viewport": RECORDED_SIZE, "device_scale_factor": RECORDED_SCALE}
    with user(made.browser, made.url, made.key, made.problems, **options) as watched:
        page, recorder, follower = watched.page, Recorder(watched.page), Follower(made.say)
        made.kubectl.apply(run_object(RUN))
        open_view(watched, f"/runs?ns={NAMESPACE}", ".runs tbody a")
        recorder.scene("the list of runs", 1.5)
        recorder.take_for(1)
        open_view(watched, f"/runs/{NAMESPACE}/{RUN}", OPEN_RUN)
        recorder.scene("Pending", 2.5)
        recorder.take()

        def look(run: Object) -> None:
            follower.see(run)
            if phase_of(run) == "Running" and recorder.scenes[-1].name != "Running":
                recorder.scene("Running", 8)
            recorder.take()
            recorder.pause()

        run = look_until_completed(made.kubectl, RUN, look)
        recorder.scene("Completed", 2)
        expect(page.locator(".run-header .phase.completed")).to_be_visible(timeout=LOADED_MS)
        recorder.take_for(3)
        made.add_run(run)
        open_view(watched, samples_view(made.runs[0]["steps"]), ".siblings article")
        recorder.scene("the rollouts of the last step", 2.5)
        recorder.take_for(1)
    frames = write_recording(recorder.scenes, made.folder / RECORDING)
    made.recording = {
        "file": RECORDING,
        "run": RUN,
        "frames": frames,
        "shown_seconds": sum(scene.shown_seconds for scene in recorder.scenes),
        "scenes": {
            scene.name: {"seconds": round(scene.seconds, 1), "shown_seconds": scene.shown_seconds}
            for scene in recorder.scenes
        },
    }


def watch_other(made: Pictures) -> None:
    """Start the second run and wait for its end. The list of runs is wanted while it is running."""
    made.kubectl.apply(run_object(OTHER))
    follower = Follower(made.say)
    listed = Shot("runs", f"/runs?ns={NAMESPACE}", ".trend svg", height=480)

    def look(run: Object) -> None:
        follower.see(run)
        if listed.file not in made.shots and phase_of(run) == "Running" and step_of(run) >= LISTED_STEP:
            made.take(listed)
        time.sleep(1)

    made.add_run(look_until_completed(made.kubectl, OTHER, look))
    if listed.file not in made.shots:
        made.take(listed)


def deploy_and_ask(made: Pictures) -> None:
    """Deploy the last adapter of the first run by the page, and ask it and its base model the same."""
    adapter = newest_adapter(made.kubectl, RUN)
    view = f"/runs/{NAMESPACE}/{RUN}/artifacts"
    with user(made.browser, made.url, made.key, made.problems) as watched:
        watched.open(view)
        header = watched.page.get_by_role("rowheader", name=adapter, exact=True)
        row = watched.page.get_by_role("table", name="Adapters").get_by_role("row").filter(has=header)
        row.get_by_role("button", name="Deploy", exact=True).click()
        watched.page.get_by_role("dialog").get_by_role("button", name="Deploy", exact=True).click()
        expect(row.get_by_role("button", name="Undeploy")).to_be_visible()
    made.say(f"{adapter} is being deployed")
    wait_until_deployed(made.kubectl, adapter)
    made.take(
        Shot("artifacts", view, ".phase.deployed"),
        Shot("chat", f"/chat?ns={NAMESPACE}&adapter={adapter}&base=1", "form textarea", act=ask),
    )


def ask(watched: WatchedPage) -> None:
    """Send a message and wait for the answers of the adapter and of its base model.

    Raises:
        RuntimeError: There was none, because the pool was not ready. It is asked some times.
    """
    page = watched.page
    watched.expect(503, "/v1/chat/completions")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Tokens at most").fill(ANSWER_TOKENS)
    ended = page.locator(".message.assistant").filter(has=page.locator(".problem, .sub"))
    problems = page.locator(".message.assistant .problem")
    for _ in range(QUESTIONS):
        page.get_by_label("Message", exact=True).fill(QUESTION)
        page.get_by_role("button", name="Send").click()
        expect(ended).to_have_count(2, timeout=LOADED_MS)
        if problems.count() == 0:
            return
        found = problems.first.inner_text()
        page.wait_for_timeout(BETWEEN_QUESTIONS_MS)
        page.get_by_role("button", name="New conversation").click()
    raise RuntimeError(f"the adapter does not answer: {found}")


def samples_view(step: int) -> str:
    """Return the view of the first run's rollouts in a step, side by side."""
    return f"/runs/{NAMESPACE}/{RUN}/samples?step={step}&view=side"


def run_facts(run: Object, rewards: list[float]) -> dict[str, Any]:
    """Return what page.json says of a run."""
    name = run["metadata"]["name"]
    status = run["status"]
    return {
        "name": name,
        "uid": run["metadata"]["uid"],
        "example": f"{EXAMPLES.name}/{EXAMPLE}",
        "changes": CHANGES[name],
        "steps": step_of(run),
        "started": status.get("startTime"),
        "completed": status.get("completionTime"),
        "reward_first": round(rewards[0], 4),
        "reward_last": round(rewards[-1], 4),
    }


def account(made: Pictures) -> dict[str, Any]:
    """Return page.json."""
    return {
        "command": COMMAND,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", *SOURCES) else ""),
        "runs": made.runs,
        "recording": made.recording,
        "pictures": {name: {"view": shot.view, "theme": shot.scheme} for name, shot in sorted(made.shots.items())},
    }


def replace(folder: Path, images: Path, facts: Mapping[str, Any], *, is_complete: bool) -> None:
    """Put the pictures of a folder in place of those of the repository. Others go only if the new ones are complete."""
    if is_complete:
        for old in images.glob("page*"):
            old.unlink()
    for new in sorted(folder.iterdir()):
        shutil.copy(new, images / new.name)
    (images / ACCOUNT).write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
