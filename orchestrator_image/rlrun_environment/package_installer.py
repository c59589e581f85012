"""Installs the environment's package: downloads its wheels from the orchestrator, and runs pip without an index.

The pod needs neither S3 credentials nor internet access. Dependencies are part of the image, or additional wheels in
the same tar archive.
"""

import asyncio
import importlib.metadata
import logging
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

import aiohttp
from rlrun.api.base.names import package_name
from rlrun.api.base.received import InputInvalid, limits_of, parse
from rlrun.constants import MAX_PACKAGE_BYTES, MAX_PACKAGE_FILES, MAX_UNPACKED_BYTES, Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.environment import EnvironmentConfig
from rlrun.protocol.problem import Problem
from rlrun.storage.environment_image import PYTHONS, ImagePython, UnsupportedPythonError, choose_python
from rlrun.storage.package_versions import admits
from rlrun.storage.verifiers_generations.generation_choice import VERIFIERS

log = logging.getLogger(__name__)

TAR = "package.tar"
FIRST_ON_PATH = ".verifiers"
"""Subfolder of the package's folder for a wheel of verifiers, the only wheel that replaces a package of the image."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=120, connect=5)
INSTALL_SECONDS = 300.0


class PackageError(Exception):
    """Error for a package that could not be downloaded or installed."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.problem = Problem(reason=reason, message=message)


async def fetch_wheels(
    config: EnvironmentConfig,
    folder: Path,
    deadline: float,
    report: Callable[[Problem | None], None],
    token: str | None,
) -> list[Path]:
    """Download the package's wheels into `folder`, and retry for `deadline` seconds.

    During retries, `report` receives a problem that a user can resolve (such as a package that was not pushed), or None
    if the orchestrator does not respond or responds with status 5xx, as while it starts. Raises PackageError at the
    deadline, or immediately if the downloaded archive cannot be used.
    """
    assert config.packages_url
    assert config.owner
    url = f"{config.packages_url.rstrip('/')}/environments/{config.owner}/{config.package}"
    params = {"version": config.version} if config.version else {}
    started, pause = time.monotonic(), FIRST_PAUSE
    problem = Problem(reason=Reason.ORCHESTRATOR_UNREACHABLE, message=f"No request to {url} has been made yet.")
    async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT, headers=bearer(token)) as session:
        while True:
            try:
                async with session.get(url, params=params) as response:
                    if response.status == 200:
                        await _save(response, folder / TAR, config.id)
                        return await asyncio.to_thread(unpack, folder / TAR, folder, config.id)
                    problem = await _problem_of(response, config.id)
                    report(problem if response.status < 500 else None)
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = Problem(
                    reason=Reason.ORCHESTRATOR_UNREACHABLE,
                    message=f"No response from {url} ({type(error).__name__}: {error}). Check the orchestrator's pod.",
                )
                report(None)
            if time.monotonic() - started + pause > deadline:
                raise PackageError(
                    problem.reason, f"Could not get the package after {deadline:.0f} s of retries: {problem.message}"
                )
            log.info("Could not get the package of %s, retrying in %.1f s: %s", config.id, pause, problem.message)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


def python_of(folder: Path, package: str) -> ImagePython:
    """Return a Python of the image that satisfies the package's `Requires-Python`.

    `folder` has the installed package or its wheel. Raises PackageError if the package allows no Python of the image.
    """
    distribution = installed_distribution(folder, package)
    try:
        return choose_python(distribution.metadata["Requires-Python"] if distribution else None)
    except UnsupportedPythonError as error:
        message = (
            f"{package} cannot be run: {error}. Change requires-python to allow one of these versions, and push the "
            "package again."
        )
        raise _not_installable(message) from error


def _python_of_wheels(wheels: Iterable[Path], package: str) -> ImagePython:
    own = next((wheel for wheel in wheels if installed_distribution(wheel, package)), None)
    return python_of(own, package) if own else PYTHONS[0]


async def install(wheels: list[Path], target: Path, python: ImagePython = PYTHONS[0]) -> None:
    """Replace the contents of `target` with the installed wheels. Raises PackageError if the wheels are
    unsuitable, or with pip's error output.

    The wheels are installed for the given Python. A wheel of verifiers is installed in the subfolder `FIRST_ON_PATH` of
    `target`.
    """
    await asyncio.to_thread(check_wheels, wheels, python)
    await asyncio.to_thread(_empty, target)
    first = [wheel for wheel in wheels if package_name(wheel.name.partition("-")[0]) == VERIFIERS]
    others = [wheel for wheel in wheels if wheel not in first]
    for chosen, folder in ((others, target), (first, target / FIRST_ON_PATH)):
        if chosen:
            await _pip_install(chosen, folder, python)


async def _pip_install(wheels: list[Path], target: Path, python: ImagePython) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-cache-dir", "--no-compile"]
    # pip runs with this process's Python. With these options, it checks wheel tags against the workers' Python, but not
    # `Requires-Python`, which it would check against its own Python.
    command += ["--python-version", python.full_version, "--ignore-requires-python"]
    command += ["--disable-pip-version-check", "--target", str(target), *map(str, wheels)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), INSTALL_SECONDS)
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise PackageError(
            Reason.ENVIRONMENT_INSTALL_FAILED, f"pip did not install the package within {INSTALL_SECONDS:.0f} s."
        ) from error
    if process.returncode:
        lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        names = ", ".join(wheel.name for wheel in wheels)
        raise PackageError(
            Reason.ENVIRONMENT_INSTALL_FAILED,
            f"pip could not install {names}: {' '.join(errors)[:800].rstrip('.')}. Build the package again for Python "
            f"{python}, and push it",
        )


def _empty(folder: Path) -> None:
    # The folder is a mount that survives container restarts; files of an older attempt must not be imported.
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def installed_distribution(target: Path, package: str) -> importlib.metadata.Distribution | None:
    """Return the package's distribution in a folder or wheel, or None. Dashes, dots, underscores and case in names are
    equivalent.
    """
    wanted = package_name(package)
    for distribution in importlib.metadata.distributions(path=[str(target)]):
        if package_name(distribution.metadata["Name"] or "") == wanted:
            return distribution
    return None


def installed_version(target: Path, package: str) -> str | None:
    """Return the version of the package installed in `target`, or None if it is not installed there."""
    distribution = installed_distribution(target, package)
    return distribution.version if distribution is not None else None


async def install_environment(
    config: EnvironmentConfig,
    target: Path,
    deadline: float,
    report: Callable[[Problem | None], None],
    token: str | None = None,
) -> str | None:
    """Install the package, unless it is part of the image, and return its version, if known. Raises PackageError.

    `token` is the environments' token, which the run's gateway requires.
    """
    if config.owner is None or config.packages_url is None:
        log.info("%s has no owner or packages URL, so its module must be part of the image", config.id)
        return installed_version(target, config.package) or config.version
    with tempfile.TemporaryDirectory(prefix="rlrun-wheels-") as folder:
        wheels = await fetch_wheels(config, Path(folder), deadline, report, token)
        python = await asyncio.to_thread(_python_of_wheels, wheels, config.package)
        await install(wheels, target, python)
    version = installed_version(target, config.package) or config.version
    log.info("Installed %s %s from %d wheels", config.id, version, len(wheels))
    return version


async def _save(response: aiohttp.ClientResponse, path: Path, what: str) -> None:
    # Write to disk, because the server shares the memory limit of its small container.
    with path.open("wb") as file:
        async for chunk in response.content.iter_chunked(1024**2):
            file.write(chunk)
            if file.tell() > MAX_PACKAGE_BYTES:
                raise _not_installable(f"The package of {what} is larger than {MAX_PACKAGE_BYTES:,} bytes.")


def unpack(tar: Path, folder: Path, what: str) -> list[Path]:
    """Extract the wheels of an uncompressed tar archive into the folder. Raises PackageError.

    Links, devices and folders in the archive are ignored, as are folder parts of file names.
    """
    wheels = []
    try:
        # Only uncompressed archives, because a compressed one could expand beyond the limit.
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                source = archive.extractfile(member) if member.isreg() and name.endswith(".whl") else None
                if source is not None:
                    with (folder / name).open("wb") as target:
                        shutil.copyfileobj(source, target)
                    wheels.append(folder / name)
    except (tarfile.TarError, EOFError) as error:
        raise _not_installable(f"The package of {what} is not a tar archive: {error}. Push it again") from error
    if not wheels:
        raise PackageError(
            Reason.ENVIRONMENT_PACKAGE_MISSING,
            f"The package of {what} contains no wheel. Push it with `rlrun env push`.",
        )
    return wheels


def check_wheels(wheels: Iterable[Path], python: ImagePython = PYTHONS[0]) -> None:
    """Raise PackageError if a wheel is damaged or for another Python, or the unpacked wheels exceed the pod's limits.

    Python's zipfile, which pip uses, never writes more bytes than a file's declared size. pip itself rejects files
    outside of the target and writes links as plain files.
    """
    size = files = 0
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise _not_installable(f"{wheel.name} is not a wheel: {error}. Build it again and push it") from error
        for found in importlib.metadata.distributions(path=[str(wheel)]):
            if not admits(wanted := found.metadata["Requires-Python"] or "", python.full_version):
                raise _not_installable(
                    f"{wheel.name} needs Python {wanted}, but the package is run with Python {python}. Build the "
                    f"package again with a wheel that supports Python {python}, and push it"
                )
        files += len(entries)
        size += sum(entry.file_size for entry in entries)
    if size > MAX_UNPACKED_BYTES or files > MAX_PACKAGE_FILES:
        raise _not_installable(
            f"The package's wheels unpack to {size:,} bytes in {files:,} files; at most {MAX_UNPACKED_BYTES:,} bytes "
            f"and {MAX_PACKAGE_FILES:,} files are allowed. Load large data in load_environment instead"
        )


def _not_installable(message: str) -> PackageError:
    return PackageError(Reason.ENVIRONMENT_INSTALL_FAILED, message)


async def _problem_of(response: aiohttp.ClientResponse, what: str) -> Problem:
    text = (await response.content.read(limits_of(Problem).size)).decode("utf-8", "replace")
    try:
        return parse(Problem, text)
    except InputInvalid:
        pass
    if response.status == 404:
        message = f"Package {what} does not exist. Push it with `rlrun env push` or correct the id."
        return Problem(reason=Reason.ENVIRONMENT_PACKAGE_MISSING, message=message)
    return Problem(
        reason=Reason.ORCHESTRATOR_UNREACHABLE,
        message=f"The request for package {what} failed with status {response.status}: {text[:200]}",
    )
