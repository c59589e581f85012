"""Methods of a path. Pure."""

import re
from collections.abc import Iterable, Mapping

PARAMETER = re.compile(r"\{[^{}]*\}")


def allowed_methods(methods: Mapping[str, Iterable[str]], path: str) -> list[str]:
    """Return the methods of the path, none if there is none like it. `methods`: of each path with parameters.

    A parameter has no colon, so that `/runs/first:stop` is the action and not a run.
    """
    allowed: set[str] = set()
    for template, those in methods.items():
        if re.fullmatch("[^/:]+".join(map(re.escape, PARAMETER.split(template))), path):
            allowed.update(those)
    return sorted(allowed)
