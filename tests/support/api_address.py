"""Address and TLS context of the API server of a kubeconfig, for HTTP clients that are not Kubernetes clients."""

import base64
import ssl
from pathlib import Path
from tempfile import NamedTemporaryFile

import yaml


def api_address(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """Return the URL of the API server, and the TLS context with the certificate of the kubeconfig's user."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context()
    if "certificate-authority-data" in cluster:
        context.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    else:
        context.load_verify_locations(cafile=cluster["certificate-authority"])
    if "client-certificate-data" in user:
        with NamedTemporaryFile("wb", suffix=".pem") as pair:
            pair.write(
                base64.b64decode(user["client-certificate-data"]) + b"\n" + base64.b64decode(user["client-key-data"])
            )
            pair.flush()
            context.load_cert_chain(pair.name)
    else:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    return str(cluster["server"]), context
