"""Address, credentials and bucket of the cluster's S3."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass

from local_cluster.addons.kubectl import LocalClusterKubectl
from local_cluster.host.errors import LocalClusterError

NAMESPACE = "rlrun-system"
SERVICE = "s3"
SECRET = "s3-credentials"
CONFIG_SECRET = "s3-config"
BUCKET = "rlrun"
ACCESS_KEY = "rlrun-local"
PORT = 8333
_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class S3:
    """Address and names of the object store.

    Attributes:
        endpoint: URL for programs on this machine.
        cluster_endpoint: URL for pods.
        access_key: Access key id.
        secret: Secret in `namespace` with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
        namespace: Namespace of the Service and the Secret.
        bucket: Bucket that every cluster starts with.
    """

    endpoint: str
    cluster_endpoint: str = f"http://{SERVICE}.{NAMESPACE}.svc.cluster.local:{PORT}"
    access_key: str = ACCESS_KEY
    secret: str = SECRET
    namespace: str = NAMESPACE
    bucket: str = BUCKET

    @staticmethod
    def of(kubectl: LocalClusterKubectl, endpoint: str | None = None) -> S3:
        """Find the object store's Service. `endpoint` replaces its address if this machine cannot reach Service
        addresses.
        """
        service = kubectl.get("service", SERVICE, NAMESPACE)
        if service is None:
            raise LocalClusterError("The cluster has no object store. Run `python -m local_cluster up` to install it.")
        return S3(endpoint=endpoint or f"http://{service['spec']['clusterIP']}:{PORT}")


def configuration(access_key: str, secret_key: str) -> str:
    """Return the S3 configuration of SeaweedFS, with one identity that has all permissions."""
    credentials = {"accessKey": access_key, "secretKey": secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return json.dumps({"identities": [{"name": "rlrun", "credentials": [credentials], "actions": actions}]})


def secret_key(kubectl: LocalClusterKubectl) -> str:
    """Return the secret access key of this cluster."""
    secret = kubectl.get("secret", SECRET, NAMESPACE)
    if secret is None:
        raise LocalClusterError(
            f"Secret {NAMESPACE}/{SECRET} is missing. Run `python -m local_cluster up` to create it."
        )
    return base64.b64decode(secret["data"]["AWS_SECRET_ACCESS_KEY"]).decode()


def ensure_bucket(kubectl: LocalClusterKubectl, s3: S3) -> None:
    """Create the bucket if it is missing. Retries until the store responds, because it accepts connections
    before that.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=secret_key(kubectl),
        region_name="us-east-1",
        # Path style, because bucket names do not resolve here. No proxy, because the address belongs to this machine.
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, proxies={}),
    )
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            if s3.bucket not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket=s3.bucket)
            return
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"The object store at {s3.endpoint} does not respond: {error}. "
                    f"Read its log: kubectl logs -n {NAMESPACE} deployment/{SERVICE}"
                ) from error
            time.sleep(0.5)
