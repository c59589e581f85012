"""Installation of the project's CustomResourceDefinitions in an API server."""

import time

import yaml
from kubernetes import client

from tests.support.source_tree import ROOT

ESTABLISHED_SECONDS = 240.0


def install_crds(api: client.ApiClient) -> None:
    """Install the project's kinds and wait until the API server serves them. Raises TimeoutError."""
    extensions = client.ApiextensionsV1Api(api)
    names = []
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        names.append(definition["metadata"]["name"])
        extensions.create_custom_resource_definition(definition)
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    while waiting := [name for name in names if not _is_served(extensions, name)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not served after {ESTABLISHED_SECONDS:.0f} s: {', '.join(waiting)}")
        time.sleep(0.1)


def _is_served(extensions: client.ApiextensionsV1Api, name: str) -> bool:
    conditions = extensions.read_custom_resource_definition(name).status.conditions or []
    return any(c.type == "Established" and c.status == "True" for c in conditions)
