"""The operator as a process of its own, behind the proxy: SIGKILL, storms, cut watches, an API server that restarts.

A process that is started after a SIGKILL uses another Lease: waiting half a minute for the dead one's would test the
lease, which has tests of its own, and take ten times as long as the rest of the scenario.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.apiserver.life import Life, new_site
from tests.chaos.apiserver.place import Place
from tests.chaos.scenario import Hung, Lost, NotStruck, Scenario, require_strike
from tests.support.api_proxy import Answer, Proxy, Request, passes, running
from tests.support.source_tree import PYTHONPATH, ROOT

TICK_SECONDS = 0.3
STORY_SECONDS = 90.0
STORM_REQUESTS = 75
LIFE_REQUESTS = 85
"""Requests that every life has. The shortest that may be has 65 writes (`kills.py`), and the operator lists and watches
each of twelve kinds."""


@dataclass
class Story:
    """State of a scenario that its fault can use: proxy, operator process and run."""

    place: Place
    proxy: Proxy
    life: Life
    namespace: str
    folder: Path
    status_port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    struck: bool = False

    def start(self) -> None:
        """A new operator process."""
        n = len(self.processes)
        settings = self.place.settings(
            self.namespace,
            kubeconfig=str(self.proxy.kubeconfig(self.folder / "kubeconfig")),
            leaseName=f"rlrun-operator-{n}",
            statusUrlTemplate=f"http://127.0.0.1:{self.status_port}/{{namespace}}/{{name}}",
        )
        file = self.folder / f"settings-{n}.yaml"
        file.write_text(yaml.safe_dump(settings))
        env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        env |= {"RLRUN_SETTINGS": str(file), "PYTHONPATH": PYTHONPATH}
        with (self.folder / f"operator-{n}.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen([sys.executable, "-m", "rlrun_operator"], env=env, stdout=log, stderr=log, cwd=ROOT)
            )

    def kill(self) -> None:
        """SIGKILL."""
        self.processes[-1].kill()
        self.processes[-1].wait(10)

    def ensure_running(self) -> None:
        """Start a new operator process if the last one has ended, as a Deployment does."""
        if self.processes[-1].poll() is not None:
            self.start()

    def end(self) -> None:
        """Nothing outlives the scenario."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)


Act = Callable[[Story], None]


def scenarios(seed: int) -> Iterator[Scenario]:
    """Each with a process of its own; some ten seconds each."""

    def made(name: str, act: Act, begin: Act = lambda _: None) -> Scenario:
        return Scenario(name, "apiserver", told(act, begin), seed, seconds=STORY_SECONDS + 30)

    for i in range(6):
        k = random.Random(seed + i).randint(5, LIFE_REQUESTS)
        yield Scenario(
            f"process-killed-at-request/{k:03d}-{i}", "apiserver", told(kill_at(k)), seed + i, STORY_SECONDS + 30
        )
    yield made("watch/410-gone-again-and-again", every_step(lambda s: s.proxy.end_watches("gone")))
    yield made("watch/refused-with-410", stays_up, first_watches(lambda _: Answer(410)))
    yield made("watch/not-answered", stays_up, first_watches(lambda _: Answer(silent=True)))
    yield made("watch/cut-again-and-again", every_step(lambda s: s.proxy.end_watches("cut")))
    yield made("api-server-restarts/in-mid-run", once(2, restart_api_server))
    yield made("etcd-slow/every-call-takes-a-second", quiet, storm(lambda d, r: Answer(delay=1.0), 0.25))
    yield made("storm/429-retry-after", quiet, storm(lambda d, r: Answer(429, (("Retry-After", "1"),)), 0.3))
    yield made("storm/500-and-503", quiet, storm(lambda d, r: Answer(d.choice((500, 503))), 0.3))
    yield made(
        "storm/connections-dropped", quiet, storm(lambda d, r: Answer(drop=d.random() < 0.5, drop_after=True), 0.2)
    )
    yield made("storm/everything-at-once", quiet, storm(_anything, 0.25))
    yield made("api-server-away/for-ten-seconds", once(1, lambda s: away(s, 10.0)))


def quiet(_: Story) -> None:
    """Do nothing: the fault is injected by the proxy alone."""


def stays_up(story: Story) -> None:
    """Require that the operator process did not end: a Deployment would hide that for a while, with growing pauses."""
    if story.processes[-1].poll() is not None:
        raise Lost("the operator process ended")


def kill_at(k: int) -> Act:
    """SIGKILL when the k-th request has arrived; its answer may or may not have been read."""

    def act(story: Story) -> None:
        if not story.struck and len(story.proxy.requests) >= k:
            story.struck = True
            story.kill()

    return act


def every_step(do: Callable[[Story], object]) -> Act:
    """Once for each step of the run, and once before."""
    done: set[tuple[int, int]] = set()

    def act(story: Story) -> None:
        key = (id(story), story.life.step)
        if key not in done:
            done.add(key)
            # Without an open watch there was nothing to end.
            story.struck = bool(do(story)) or story.struck

    return act


def once(step: int, do: Act) -> Act:
    """At that step."""

    def act(story: Story) -> None:
        if not story.struck and story.life.step >= step:
            story.struck = True
            do(story)

    return act


def restart_api_server(story: Story) -> None:
    """Killed, and started again with the same data and address."""
    control_plane = story.place.control_plane
    control_plane._supervisor.stop("kube-apiserver", grace=0.0)
    control_plane.start()


def away(story: Story, seconds: float) -> None:
    """Drop all requests to the API server for some seconds."""
    until = time.monotonic() + seconds
    story.proxy.decide = lambda _: Answer(drop=time.monotonic() < until)
    story.proxy.end_watches("cut")


def storm(make: Callable[[random.Random, Request], Answer], share: float) -> Act:
    """Breaks a share of all calls but those for the lease: for some seconds all over the start, then ever fewer."""

    def begin(story: Story) -> None:
        dice = random.Random(0)

        def decide(request: Request) -> Answer:
            # A look that failed asks only for what it has not read. Each failure doubles the pause before the next one:
            # a storm of 150 requests lasted for up to 50 s.
            now = share if request.index < STORM_REQUESTS else share / 10
            answer = Answer() if request.lease or dice.random() >= now else make(dice, request)
            story.struck = story.struck or answer != Answer()
            return answer

        story.proxy.decide = decide

    return begin


def first_watches(make: Callable[[Request], Answer]) -> Act:
    """The first watch of each kind gets this answer."""

    def begin(story: Story) -> None:
        seen: set[str] = set()

        def decide(request: Request) -> Answer:
            if not request.watch or request.path in seen:
                return Answer()
            seen.add(request.path)
            story.struck = True
            return make(request)

        story.proxy.decide = decide

    return begin


def _anything(dice: random.Random, _: Request) -> Answer:
    return dice.choice(
        (
            Answer(500),
            Answer(429, (("Retry-After", "1"),)),
            Answer(drop=True),
            Answer(drop_after=True),
            Answer(delay=1.5),
        )
    )


def told(act: Act, begin: Act = lambda _: None) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A whole life with an operator process; `begin` comes before its start, `act` in every tick."""

    async def play(place: Place) -> None:
        site, connection = await new_site(place)
        life = Life(site)
        folder = place.folder / site.namespace
        folder.mkdir()
        with running(place.control_plane.kubeconfig) as proxy, _statuses(life) as port:
            story = Story(place, proxy, life, site.namespace, folder, port)
            begin(story)
            story.start()
            try:
                await _live(story, act)
                proxy.decide = passes
                # An operator that starts takes seconds: a pod may have come and gone, and the run ended, meanwhile.
                await life.check_end(restarts=(0, 1))
                require_strike(story.struck, "the fault of the scenario")
            except (Lost, Hung, NotStruck) as error:
                error.args = (f"{error}\n{_logs(story)}",)
                raise
            finally:
                story.end()
                await connection.close()

    return play


async def _live(story: Story, act: Act) -> None:
    deadline = time.monotonic() + STORY_SECONDS
    while True:
        try:
            if await story.life.over():
                return
            await story.life.tick()
        except Exception as error:
            # The API server may be away for the user and the node as well.
            if not _is_away(error):
                raise
        act(story)
        story.ensure_running()
        if time.monotonic() > deadline:
            raise Hung(f"not over after {STORY_SECONDS:.0f} s, at step {story.life.step}")
        await asyncio.sleep(TICK_SECONDS)


def _is_away(error: Exception) -> bool:
    return getattr(error, "status", None) in (0, 404, 409, 429, 500, 503, 504) or isinstance(error, OSError)


def _logs(story: Story) -> str:
    return "\n".join(f.read_text(errors="replace")[-1500:] for f in sorted(story.folder.glob("operator-*.log")))


class _statuses:
    """Answers for the orchestrator."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def __enter__(self) -> int:
        life = self._life

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = life.answer
                body = json.dumps(answer.to_json_dict() if answer else None).encode()
                self.send_response(200 if answer else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return int(self._server.server_address[1])

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
