"""Bring the catalogue of this release into the cluster: a Job's whole work, after install and upgrade.

RLModels cannot be ordinary templates of the chart: Helm looks up the kind of every object before it creates the first,
and on a first install the kind comes with the same chart. Objects are applied, never deleted and made again, because
runs hold on to them; what this release put there before and no longer lists is deleted.
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
    """Raises ApiException when the API server refuses a model; the message names the field."""
    with open(os.environ["MODELS"], encoding="utf-8") as file:
        models = json.load(file)
    release = os.environ["RELEASE"]
    config.load_config()
    api = client.CustomObjectsApi()
    deadline = time.monotonic() + SECONDS
    while True:  # the kind is served a moment after its definition is accepted
        try:
            there = api.list_cluster_custom_object(GROUP, VERSION, PLURAL, label_selector=f"{LABEL}={release}")
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
    wanted = {m["metadata"]["name"] for m in models}
    for item in there["items"]:
        if (name := item["metadata"]["name"]) not in wanted:
            api.delete_cluster_custom_object(GROUP, VERSION, PLURAL, name)
            print(f"deleted {name}")


try:
    main()
except ApiException as problem:
    raise SystemExit(f"the API server refuses: {problem.body or problem.reason}") from None
