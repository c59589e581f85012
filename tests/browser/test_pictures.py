"""Each view of `make pictures` becomes a picture, with the seeded runs in place of real ones."""

from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser

from tests.browser.conftest import LEARNING, OTHER, STEPS, Server
from tests.pictures.__main__ import NAMESPACE, PHONE, SHOTS, Shot, take

READY = {"artifacts": ".artifacts .phase.ready"}
"""Selectors of views that show a deployment, which the seeded runs lack."""


@pytest.mark.parametrize("shot", [shot for shot in SHOTS if shot.act is None], ids=lambda shot: shot.name)
def test_a_view_becomes_a_picture(browser: Browser, server: Server, tmp_path: Path, shot: Shot) -> None:
    names = {"run": f"{server.namespace}/{LEARNING}", "other": f"{server.namespace}/{OTHER}", "step": str(STEPS)}
    view, ready = shot.view.replace(NAMESPACE, server.namespace), READY.get(shot.name, shot.ready)
    changed = Shot(shot.name, view, ready, shot.height, shot.width, shot.scheme)
    take(browser, server.url, server.tokens["editor"], [changed], tmp_path, **names)
    assert Image.open(tmp_path / shot.file).width == (720 if shot.width == PHONE else 1920)
