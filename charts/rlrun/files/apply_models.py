"""Apply the model catalog of the release. Run by a Job after install and upgrade.

RLModels cannot be templates of the chart: Helm looks up the kind of every object before it creates the first one, and
on a first install the kind comes with the same chart. Objects are applied, never recreated, because runs reference
them. Models of the release that are no longer listed are deleted.
"""

import json
import os
import time

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

GROUP, VERSION, PLURAL = "rlrun.dev", "v1alpha1", "rlmodels"
LABEL = "rlrun.dev/catalogue-of"
SECONDS = 90


def main() -> None:
    """Apply the listed models and delete the others of the release. Raises ApiException, which names the field."""
    with open(os.environ["MODELS"], encoding="utf-8") as file:
        models = json.load(file)
    release = os.environ["RELEASE"]
    config.load_config()
    api = client.CustomObjectsApi()
    deadline = time.monotonic() + SECONDS
    while True:  # the API server serves a kind shortly after it accepts its CRD
        try:
            existing = api.list_cluster_custom_object(GROUP, VERSION, PLURAL, label_selector=f"{LABEL}={release}")
            break
        except ApiException as problem:
            if problem.status != 404 or time.monotonic() > deadline:
                raise
            time.sleep(1)
    for model in models:
        name = model["metadata"]["name"]
        api.patch_cluster_custom_object(
            GROUP,
            VERSION,
            PLURAL,
            name,
            model,
            field_manager="rlrun-chart",
            force=True,
            _content_type="application/apply-patch+yaml",
        )
        print(f"applied {name} ({model['spec']['id']})")
    listed = {m["metadata"]["name"] for m in models}
    for item in existing["items"]:
        if (name := item["metadata"]["name"]) not in listed:
            api.delete_cluster_custom_object(GROUP, VERSION, PLURAL, name)
            print(f"deleted {name}")


try:
    main()
except ApiException as problem:
    raise SystemExit(
        f"The API server rejected a model of the catalog: {problem.body or problem.reason}. "
        "Correct `models` in the values."
    ) from None
