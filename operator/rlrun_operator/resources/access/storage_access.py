"""Access of the pods of runs and serving pools to S3: a token for rlrun-server, and a grant that the operator signs.

No pod has credentials of S3 (see `rlrun.protocol.storage_access`).
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlrun.api.base.addressing_style import addressing_variables
from rlrun.kube.objects import Obj
from rlrun.protocol import signed_text
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.storage_access import (
    GRANT_VARIABLE,
    SERVER_AUTHORITY_VARIABLE,
    SERVER_VARIABLE,
    TOKEN_DIR,
    TOKEN_FILE,
    TOKEN_FILE_VARIABLE,
    StorageGrant,
    StorageRole,
)

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.base.naming import RunIdentity

TOKEN_SECONDS = 3600
"""Lifetime of a token. The kubelet renews it in time, and a deleted pod's token ends at once."""


def grant_key_secret_name(lease_name: str) -> str:
    """Return the name of the Secret with the key of the grants, beside the Lease of the same operator."""
    return f"{lease_name}-storage-grants"


def sign_references(key: bytes, identity: RunIdentity, resolved: ResolvedRun) -> str:
    """Return the signature of what an attempt may read outside of its run: HMAC-SHA256 in hexadecimal.

    It stays on the ConfigMap with the configuration. Users may write ConfigMaps, and a grant for a folder that they
    have written there would open the files of others.
    """
    references = (identity.uid, str(identity.attempt), resolved.model.source, resolved.warm_start_from or "")
    return hmac.digest(key, "\n".join(("references", *references)).encode(), hashlib.sha256).hex()


@dataclass(frozen=True)
class StorageClient:
    """Variables, mounts and volumes of a container that uses S3."""

    env: dict[str, str]
    mounts: dict[str, str]
    """Read-only mounts: path by volume."""
    volumes: dict[str, Obj]


@dataclass(frozen=True)
class StorageAccess:
    """Access of the pods of one run, or of one serving pool."""

    settings: OperatorSettings
    key: bytes = field(repr=False)
    """Key of the grants. rlrun-server has it too."""
    namespace: str
    owner: str
    """Uid of the run, or name of the pool or of the cache of weights."""
    folder: str = ""
    """URI of the run's folder."""
    trusts_references: bool = True
    """False if the base model and the checkpoint of the attempt are not those that the operator has resolved."""

    @classmethod
    def of_run(
        cls,
        identity: RunIdentity,
        settings: OperatorSettings,
        resolved: ResolvedRun,
        key: bytes,
        *,
        trusts_references: bool = True,
    ) -> "StorageAccess":
        """Return the access of an attempt's pods."""
        folder = resolved.artifacts.run_uri
        return cls(settings, key, identity.namespace, identity.uid, folder, trusts_references)

    def references(self, *uris: str | None) -> list[str]:
        """Return those of the base model and the checkpoint that may be read: none if they are not trusted."""
        return [uri for uri in uris if uri] if self.trusts_references else []

    def grant(self, role: StorageRole, readable: Sequence[str] = (), listable: Sequence[str] = ()) -> str:
        """Return the signed grant. It has no time in it: the same decision is the same text."""
        content = StorageGrant(
            namespace=self.namespace,
            owner=self.owner,
            role=role,
            folder=self.folder,
            readable=list(readable),
            listable=list(listable),
        )
        return signed_text.sign(content, self.key)

    def client(
        self,
        role: StorageRole,
        readable: Sequence[str] = (),
        listable: Sequence[str] = (),
        *,
        with_grant: bool = True,
    ) -> StorageClient:
        """Return what a container of this role needs. Without a grant it gets one over the network.

        Each container of a pod has a token of its own, so that none can use S3 as another role.
        """
        volume, folder = f"storage-token-{role}", f"{TOKEN_DIR}-{role}"
        audience = StorageGrant(namespace=self.namespace, owner=self.owner, role=role).audience
        token = {"audience": audience, "expirationSeconds": TOKEN_SECONDS, "path": TOKEN_FILE}
        env = {
            SERVER_VARIABLE: self.settings.storage_server,
            TOKEN_FILE_VARIABLE: f"{folder}/{TOKEN_FILE}",
            "AWS_DEFAULT_REGION": self.settings.s3.region,
        }
        if self.settings.storage_server_authority:
            env[SERVER_AUTHORITY_VARIABLE] = self.settings.storage_server_authority
        if self.settings.s3.endpoint_url:
            env["AWS_ENDPOINT_URL_S3"] = self.settings.s3.endpoint_url
        env |= addressing_variables(self.settings.s3.addressing_style)
        if with_grant:
            env[GRANT_VARIABLE] = self.grant(role, readable, listable)
        return StorageClient(
            env, {volume: folder}, {volume: {"projected": {"sources": [{"serviceAccountToken": token}]}}}
        )
