"""Reading of the reason for which pip failed, from its output. Pure."""

import contextlib
import re
from collections.abc import Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidSdistFilename, parse_sdist_filename
from packaging.version import Version
from rlrun.api.base.names import package_name
from rlrun.storage.environment_image import ImagePackage

from rlrun_cli.inputs.bundle.pip_run import PipResult
from rlrun_cli.inputs.bundle.pip_target import SKIP, TARGET
from rlrun_cli.terminal.errors import CliError

NOT_FOUND = re.compile(r"No matching distribution found for ([^(\n]+)")
DEPENDS = re.compile(r"(\S+) (\S+) depends on (.+)")
UNREACHABLE = re.compile(r"connection error|Retrying \(|Failed to connect|Connection to \S+ timed out")
SOURCE = re.compile(r"No sources permitted for ([^\s:]+): \S*/([^\s/#?]+)")
CONFLICT = "The conflict is caused by:"
IN_IMAGE = re.compile(r"The user requested \(constraint\) ([A-Za-z0-9][A-Za-z0-9._-]*)==")
PUSHED = re.compile(r"The user requested ([A-Za-z0-9][A-Za-z0-9._-]*) (\S+) \(from ")


class SourceOnlyError(CliError):
    """A requirement that source distributions meet and no wheel."""

    def __init__(self, requirement: Requirement, build: str, details: Sequence[str] = ()) -> None:
        """`build`: argument of `pip wheel`."""
        super().__init__(
            f"{requirement.name} is a source distribution only: no wheel fits the environment image ({TARGET})",
            f"build one on such a machine, `pip wheel --no-deps {build}`, and name it with --include",
            details=list(details),
        )
        self.requirement = requirement


def find_failure(result: PipResult, log: str, pins: Mapping[str, ImagePackage]) -> CliError:
    """Return what made pip fail, with the next step. `pins`: packages of the image."""
    sides = _conflict(result.lines)
    absent = _absent(result.lines, sides)
    sources = _sources(log, absent) if absent else []
    if absent and sources:
        return SourceOnlyError(absent, f"{absent.name}=={sources[-1]}", sides or result.last_lines[-2:])
    if sides and absent is None:
        return CliError(
            "the requirements contradict each other or the environment image",
            "require versions that fit: a pushed wheel does not replace a package of the image. "
            f"Or name a wheel that fits with --include; {SKIP}",
            details=[_side(side, pins) for side in sides],
        )
    if UNREACHABLE.search(log):
        return CliError(
            "pip could not reach a package index",
            f"check its settings with `pip config list`, or name wheels with --include; {SKIP}",
            details=result.last_lines,
        )
    return CliError(
        f"pip found no wheel of {absent} for the environment image ({TARGET})" if absent else "pip failed",
        f"correct the requirement or pip's settings (`pip config list`), or name wheels with --include; {SKIP}",
        details=sides or result.last_lines,
    )


def _sources(log: str, wanted: Requirement) -> list[Version]:
    """Return the versions of a requirement's source distributions, which pip skipped."""
    found = set()
    for match in SOURCE.finditer(log):
        if package_name(match[1]) == package_name(wanted.name):
            with contextlib.suppress(InvalidSdistFilename):
                found.add(parse_sdist_filename(match[2])[1])
    return sorted(version for version in found if wanted.specifier.contains(version, prereleases=True))


def _absent(lines: Sequence[str], sides: Sequence[str]) -> Requirement | None:
    """Return the requirement of which pip has no wheel, None if packages contradict each other."""
    if not sides:
        text = next((match[1] for line in reversed(lines) if (match := NOT_FOUND.search(line))), None)
        return _parse(text) if text else None
    needed = [DEPENDS.fullmatch(side) for side in sides]
    wanted = [_parse(match[3]) for match in needed if match]
    # Versions of one package want versions of another one: nothing is against these.
    if len({match and package_name(match[1]) for match in needed}) == 1 and len(wanted) == len(sides):
        names = {each and package_name(each.name) for each in wanted}
        return wanted[0] if len(names) == 1 else None
    return None


def _parse(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _conflict(lines: Sequence[str]) -> list[str]:
    """Return the requirements that conflict, in pip's words. Of each package only the first version is shown."""
    text = list(lines)
    start = next((number for number, line in enumerate(text) if CONFLICT in line), None)
    if start is None:
        return []
    sides: dict[object, str] = {}
    for line in text[start + 1 :]:
        if not line.startswith("    "):
            break
        match = DEPENDS.fullmatch(line.strip())
        sides.setdefault((match[1], match[3]) if match else line, line.strip())
    return list(sides.values())


def _side(line: str, pins: Mapping[str, ImagePackage]) -> str:
    if (match := IN_IMAGE.match(line)) and (package := pins.get(package_name(match[1]))):
        return f"the environment image has {package.name} {package.version}"
    if match := PUSHED.match(line):
        return f"{match[1]} {match[2]} is pushed"
    return line
