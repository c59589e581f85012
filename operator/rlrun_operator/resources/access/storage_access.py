"""S3 access for pods of runs and serving pools: a token for rlrun-server, and a grant signed by the operator.

Pods have no S3 credentials (see `rlrun.protocol.storage_access`).
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlrun.constants import Driver
from rlrun.kube.objects import Obj
from rlrun.protocol import signed_text
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.storage_access import (
    GRANT_VARIABLE,
    MAX_GRANT_LIFETIME,
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
"""Lifetime of a token in seconds. The kubelet renews the token before it expires. The API server rejects the token of a
deleted pod at once, but rlrun-server caches accepted tokens for 60 s.
"""

RENEWAL_SECONDS = 1800
"""Interval in seconds at which grants with an end time are renewed."""


def grant_key_secret_name(lease_name: str) -> str:
    """Return the name of the Secret with the key that signs grants. The Secret is in the namespace of the operator's
    Lease.
    """
    return f"{lease_name}-storage-grants"


def sign_references(key: bytes, identity: RunIdentity, resolved: ResolvedRun) -> str:
    """Return the signature of an attempt's references to files outside its run: HMAC-SHA256 in hexadecimal.

    The signature is stored on the ConfigMap with the configuration. Users can write ConfigMaps, and without the
    signature could get a grant for other users' folders.

    For a run with `driver: Client` the signature also covers the values that the `TrainerOrder` takes from the RLModel.
    A user could otherwise change them, and a larger adapter or pass could use up the memory of other runs.
    """
    model = resolved.model
    references = [identity.uid, str(identity.attempt), model.source, resolved.warm_start_from or ""]
    if resolved.spec.driver is Driver.client:
        sizes = [model.lora.rank, model.lora.dropout, model.seq_len, model.trainer.micro_batch_tokens]
        references.append(json.dumps([*sizes, *model.lora.target_modules]))
    return hmac.digest(key, "\n".join(("references", *references)).encode(), hashlib.sha256).hex()


@dataclass(frozen=True)
class StorageClient:
    """Variables, mounts and volumes for a container that uses S3."""

    env: dict[str, str]
    mounts: dict[str, str]
    """Read-only mount paths by volume name."""
    volumes: dict[str, Obj]


@dataclass(frozen=True)
class StorageAccess:
    """S3 access of the pods of one run or serving pool."""

    settings: OperatorSettings
    key: bytes = field(repr=False)
    """Key that signs grants, which rlrun-server also has."""
    namespace: str
    owner: str
    """UID of the run, or name of the pool or weights cache."""
    folder: str = ""
    """URI of the run's folder."""
    trusts_references: bool = True
    """True if the base model and the checkpoint of the attempt are known to be those that the operator resolved."""

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
        """Return the S3 access of an attempt's pods."""
        folder = resolved.artifacts.run_uri
        return cls(settings, key, identity.namespace, identity.uid, folder, trusts_references)

    def references(self, *uris: str | None) -> list[str]:
        """Return the URIs of base model and checkpoint that may be read, or an empty list if they are not trusted."""
        return [uri for uri in uris if uri] if self.trusts_references else []

    def grant(self, role: StorageRole, readable: Sequence[str] = (), listable: Sequence[str] = ()) -> str:
        """Return the signed grant. It contains no time, so equal inputs give equal grants."""
        return self._sign(role, readable=list(readable), listable=list(listable))

    def held_grant(self, role: StorageRole, holder: str, now: datetime, readable: Sequence[str] = ()) -> str:
        """Return the signed grant for a process of the pool `holder`, valid for at least 90 minutes.

        The grant's end depends on the interval of RENEWAL_SECONDS that contains `now`, so equal inputs within one
        interval give equal grants. An unchanged PoolOrder is therefore sent again only in the next interval.
        """
        begin = now.timestamp() // RENEWAL_SECONDS * RENEWAL_SECONDS
        ends = datetime.fromtimestamp(begin, UTC) + MAX_GRANT_LIFETIME
        return self._sign(role, readable=list(readable), holder=holder, ends=ends)

    def _sign(self, role: StorageRole, **fields: Any) -> str:
        content = StorageGrant(namespace=self.namespace, owner=self.owner, role=role, folder=self.folder, **fields)
        return signed_text.sign(content, self.key)

    def client(
        self,
        role: StorageRole,
        readable: Sequence[str] = (),
        listable: Sequence[str] = (),
        *,
        with_grant: bool = True,
    ) -> StorageClient:
        """Return variables, mounts and volumes for a container of this role.

        If `with_grant` is False, the container receives its grants with its list of adapters or runs. Each container of
        a pod has its own token, so that it cannot use S3 as another role.
        """
        volume, folder = f"storage-token-{role}", f"{TOKEN_DIR}-{role}"
        audience = StorageGrant(namespace=self.namespace, owner=self.owner, role=role).audience
        token = {"audience": audience, "expirationSeconds": TOKEN_SECONDS, "path": TOKEN_FILE}
        env = {
            SERVER_VARIABLE: self.settings.storage_server,
            TOKEN_FILE_VARIABLE: f"{folder}/{TOKEN_FILE}",
            **self.settings.s3.variables,
        }
        if self.settings.storage_server_authority:
            env[SERVER_AUTHORITY_VARIABLE] = self.settings.storage_server_authority
        if with_grant:
            env[GRANT_VARIABLE] = self.grant(role, readable, listable)
        return StorageClient(
            env, {volume: folder}, {volume: {"projected": {"sources": [{"serviceAccountToken": token}]}}}
        )
