"""Methods of a path, as the OpenAPI document has them. Pure."""

import re
from collections.abc import Mapping
from typing import Any

PARAMETER = re.compile(r"\{[^{}]*\}")


def allowed_methods(document: Mapping[str, Any], path: str) -> list[str]:
    """Return the methods of the path, none if the document does not have it.

    A parameter has no colon, so that `/runs/first:stop` is the action and not a run.
    """
    found: set[str] = set()
    for template, item in document["paths"].items():
        if re.fullmatch("[^/:]+".join(map(re.escape, PARAMETER.split(template))), path):
            found.update(map(str.upper, item))
    return sorted(found)
