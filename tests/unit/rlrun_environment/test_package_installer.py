"""Fetching and installing packages, from an orchestrator that is late, empty-handed or wrong."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.protocol.environment import EnvironmentConfig
from rlrun.protocol.problem import Problem
from rlrun_environment import package_installer
from rlrun_environment.package_installer import PackageError, install_environment

Reply = Callable[[int, web.Request], web.Response]


def tar_of(*files: tuple[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


@pytest.fixture
async def provide_from(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(package_installer, "FIRST_PAUSE", 0.01)
    servers, reports = [], []

    async def run(reply: Reply, package: str, deadline: float = 20.0) -> str | None:
        count = 0

        async def handle(request: web.Request) -> web.Response:
            nonlocal count
            count += 1
            return reply(count, request)

        app = web.Application()
        app.router.add_get("/environments/{owner}/{name}", handle)
        servers.append(TestServer(app))
        await servers[-1].start_server()
        url = f"http://127.0.0.1:{servers[-1].port}"
        settings = EnvironmentConfig(id=package, packages_url=url)
        return await install_environment(settings, tmp_path / "installed", deadline, reports.append)

    run.reports = reports  # type: ignore[attr-defined]
    yield run
    for server in servers:
        await server.close()


async def test_wheels_are_installed_and_older_contents_are_gone(provide_from, make_wheel, tmp_path):
    wheel = make_wheel("my-env", "VALUE = 7", version="1.2.0")
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "stale.py").write_text("")
    asked = []

    def reply(n: int, request: web.Request) -> web.Response:
        asked.append((request.match_info["owner"], request.match_info["name"], request.query.get("version")))
        return web.Response(body=tar_of((f"../../{wheel.name}", wheel.read_bytes())))

    assert await provide_from(reply, "tester/my-env@1.2.0") == "1.2.0"
    assert asked == [("tester", "my-env", "1.2.0")]
    assert "VALUE = 7" in (tmp_path / "installed" / "my_env.py").read_text()
    assert not (tmp_path / "installed" / "stale.py").exists()


async def test_a_package_pushed_late_heals_and_was_reported(provide_from, make_wheel):
    wheel = make_wheel("late-env", "")
    missing = Problem(reason="EnvironmentPackageMissing", message="push it")

    def reply(n: int, request: web.Request) -> web.Response:
        if n == 1:
            return web.Response(status=503, text="starting")
        if n == 2:
            return web.json_response(missing.to_json_dict(), status=404)
        return web.Response(body=tar_of((wheel.name, wheel.read_bytes())))

    assert await provide_from(reply, "tester/late-env") == "1.0.0"
    assert provide_from.reports == [None, missing]


async def test_the_deadline_tells_the_last_reason(provide_from):
    with pytest.raises(PackageError, match=r"EnvironmentPackageMissing.*rlrun env push"):
        await provide_from(lambda n, r: web.Response(status=404), "tester/none", deadline=0.05)


async def test_a_wheel_for_another_python_names_pips_reason(provide_from, make_wheel):
    wheel = make_wheel("old-env", "", tag="cp27-cp27m-win32")
    reply = lambda n, r: web.Response(body=tar_of((wheel.name, wheel.read_bytes())))  # noqa: E731
    with pytest.raises(PackageError, match=r"EnvironmentInstallFailed.*not a supported wheel"):
        await provide_from(reply, "tester/old-env")


async def test_a_tar_without_wheels_or_no_tar(provide_from):
    with pytest.raises(PackageError, match="contains no wheel"):
        await provide_from(lambda n, r: web.Response(body=tar_of(("readme", b"x"))), "tester/a")
    with pytest.raises(PackageError, match="not a tar archive"):
        await provide_from(lambda n, r: web.Response(body=b"<html>" * 200), "tester/b")


async def test_an_id_without_owner_is_expected_in_the_image(tmp_path):
    settings = EnvironmentConfig(id="built-in", packages_url="http://127.0.0.1:9")
    assert await install_environment(settings, tmp_path, 1.0, lambda _: None) is None
