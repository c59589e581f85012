"""The page in Chromium, on rlrun-server as a process, at a real API server and a real S3.

All tests of a worker share server, browser and seeded runs; each has a browser profile of its own.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from playwright.sync_api import Browser
from rlrun.storage.layout import RunLayout

from local_cluster.control_plane.without_nodes import ControlPlane

# The same control plane and S3 as the other tests of this level have.
from tests.apiserver.conftest import api, control_plane, namespace, s3_server  # noqa: F401
from tests.apiserver.rlrun_server.test_users import Accounts, chart_objects
from tests.support.browser import WatchedPage, chromium, file_name, watched_page
from tests.support.seaweedfs import S3Server
from tests.support.seeded_runs import SeededRuns
from tests.support.server_process import server_process
from tests.support.source_tree import ROOT

SCREENSHOTS = ROOT / "build" / "browser"
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>\"'><svg/onload=window.hacked=1>"
"""Text that runs in a page that takes it for markup."""
LEARNING, OTHER, FAILED, ODD = "reverse-text", "longer-text", "broken-text", "odd-text"
STEPS = 60
STORED = (8, 40, 60)
"""Steps with rollouts."""
AGENTS = ("asker", "guesser")
"""Agents of the run OTHER."""


@dataclass
class Server:
    """The running server, and what is in its namespace."""

    url: str
    namespace: str
    tokens: dict[str, str]
    """Tokens of users by role: editor, viewer, stranger."""
    layouts: dict[str, RunLayout]

    def view(self, run: str, *parts: str) -> str:
        """Return the view of a run."""
        return "/".join(["/runs", self.namespace, run, *parts])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all as slow: they start a server and a browser."""
    for item in items:
        if "/browser/" in item.nodeid:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def server(
    api: client.ApiClient,  # noqa: F811
    control_plane: ControlPlane,  # noqa: F811
    s3_server: S3Server,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """The server, with runs in a namespace and three users."""
    name = f"page-{uuid.uuid4().hex[:8]}"
    client.CoreV1Api(api).create_namespace({"metadata": {"name": name}})
    accounts, roles = Accounts(api), make_roles(api)
    tokens = {role: accounts.make(name, role, roles.get(role)) for role in ("editor", "viewer", "stranger")}
    layouts = seed(SeededRuns(api, s3_server), name)
    folder = tmp_path_factory.mktemp("server")
    with server_process(folder, control_plane.kubeconfig, s3_server) as url:
        yield Server(url, name, tokens, layouts)


def make_roles(api: client.ApiClient) -> dict[str, str]:  # noqa: F811
    """Create the chart's roles of users, and return their names. Kubernetes' own roles let users list Events too."""
    suffix, names = uuid.uuid4().hex[:6], {}
    for found in chart_objects("rlrun-system", "user-roles.yaml"):
        kind = found["metadata"]["name"].removeprefix("rlrun-")
        if found["kind"] == "ClusterRole" and kind in ("editor", "viewer"):
            names[kind] = f"page-{kind}-{suffix}"
            core = [{"apiGroups": [""], "resources": ["events", "pods", "pods/log"], "verbs": ["get", "list"]}]
            body = {"metadata": {"name": names[kind]}, "rules": [*found["rules"], *core]}
            client.RbacAuthorizationV1Api(api).create_cluster_role(body)
    return names


def seed(runs: SeededRuns, namespace: str) -> dict[str, RunLayout]:  # noqa: F811
    """Create a run that learns, one to compare it with, one that has failed, and one full of hostile texts."""
    progress = {"step": STEPS, "maxSteps": 100, "reward": 0.7, "etaSeconds": 800, "policyVersion": STEPS}
    condition = {"type": "ArtifactsUploaded", "status": "True", "reason": "Applied", "message": "all are there"}
    started = {**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    found = {
        LEARNING: runs.run(
            namespace, LEARNING, {"phase": "Running", "progress": progress, "conditions": [started]}, maxSteps=100
        ),
        OTHER: runs.run(
            namespace, OTHER, {"phase": "Completed", "progress": {**progress, "step": 40, "maxSteps": 40}}, maxSteps=40
        ),
        FAILED: runs.run(
            namespace,
            FAILED,
            {
                "phase": "Failed",
                "reason": "EnvironmentLoadFailed",
                "message": "the environment has no load_environment",
            },
        ),
        ODD: runs.run(
            namespace,
            ODD,
            {
                "phase": "Running",
                "reason": "EnvironmentCrashed",
                "message": HOSTILE,
                "progress": progress,
                "conditions": [{**started, "type": "RewardFlat", "reason": "RewardFlat", "message": HOSTILE}],
            },
            name=HOSTILE[:64],
            env=[{"id": "acme/reverse", "name": "odd", "args": {HOSTILE: HOSTILE}}],
        ),
    }
    for at, name in enumerate((LEARNING, OTHER)):
        runs.metrics(found[name], STEPS - 20 * at, seed=at)
        for step in STORED:
            runs.samples(found[name], step, agents=AGENTS if name == OTHER else (None,))
    runs.metrics(found[ODD], 10, extra={f"metrics/{HOSTILE}/mean": 0.5, f"reward/{HOSTILE}/mean": 0.5})
    runs.samples(found[ODD], 8, text=HOSTILE, environment=HOSTILE.replace("/", " "))
    layout = found[LEARNING]
    runs.artifact(namespace, "RLCheckpoint", f"{LEARNING}-40", LEARNING, layout, 40)
    runs.artifact(namespace, "RLAdapter", f"{LEARNING}-a40", LEARNING, layout, 40, deployed=False)
    return found


@pytest.fixture
def options() -> dict[str, Any]:
    """Options of the browser's profile, which tests replace: size of the screen, colours."""
    return {}


@pytest.fixture
def watched(
    browser: Browser, server: Server, options: dict[str, Any], request: pytest.FixtureRequest
) -> Iterator[WatchedPage]:
    """A page with nobody logged in. Fails the test for errors in the console; leaves a picture in build/browser."""
    with watched_page(browser, server.url, **options) as found:
        try:
            yield found
        finally:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            name = file_name(request.node.name.removeprefix("test_"))
            found.page.screenshot(path=str(Path(SCREENSHOTS, f"{name}.png")), full_page=True)


@pytest.fixture
def editor(watched: WatchedPage, server: Server) -> WatchedPage:
    """A page of a user who may change runs."""
    watched.log_in(server.tokens["editor"])
    return watched
