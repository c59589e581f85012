"""Manifests of the add-ons."""

import pytest
import yaml

from local_cluster.addons import workloads
from local_cluster.host.network import DNS_SERVICE_ADDRESS

VALUES = {
    "coredns": {"COREDNS_IMAGE": "i", "DNS_ADDRESS": DNS_SERVICE_ADDRESS, "MANIFEST_HASH": "0e1"},
    "s3": {"WEED_IMAGE": "i", "S3_DATA": "/s/s3"},
}


@pytest.mark.parametrize("name", sorted(VALUES))
def test_manifests_render_to_valid_documents(name: str) -> None:
    documents = list(yaml.safe_load_all(workloads.render(name, VALUES[name])))
    assert all(document["kind"] and document["metadata"]["name"] for document in documents)
    with pytest.raises(KeyError):
        workloads.render(name, {})


def test_every_manifest_is_tested() -> None:
    assert {file.stem for file in workloads.MANIFESTS.glob("*.yaml")} == set(VALUES)
