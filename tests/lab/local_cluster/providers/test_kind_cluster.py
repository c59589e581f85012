"""Configuration of the kind cluster."""

import yaml

from local_cluster.addons import object_store, workloads
from local_cluster.host.network import DNS_SERVICE_ADDRESS
from local_cluster.providers.kind_cluster import _config as kind_config

VALUES = {
    "coredns": {"COREDNS_IMAGE": "i", "DNS_ADDRESS": DNS_SERVICE_ADDRESS, "MANIFEST_HASH": "0e1"},
    "s3": {"WEED_IMAGE": "i", "S3_DATA": "/s/s3"},
}


def test_kind_publishes_the_node_port_of_the_object_store() -> None:
    documents = list(yaml.safe_load_all(workloads.render("s3", VALUES["s3"])))
    service = next(document for document in documents if document["kind"] == "Service")
    mapping = kind_config()["nodes"][0]["extraPortMappings"][0]  # type: ignore[index]
    assert mapping["containerPort"] == service["spec"]["ports"][0]["nodePort"]
    assert mapping["hostPort"] == object_store.PORT
