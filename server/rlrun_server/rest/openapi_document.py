"""`python -m rlrun_server.rest.openapi_document FILE` writes the OpenAPI document of the REST API."""

import json
import sys
from pathlib import Path

from rlrun_server.rest.rest_app import rest_app


def openapi_text() -> str:
    """Return the OpenAPI document as text, as it is stored in `docs/reference/openapi.json`."""
    return json.dumps(rest_app().openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(openapi_text())
