"""Credential with which a user authenticates to rlrun-server."""

import re
import threading
import time
from collections.abc import Callable
from datetime import datetime

from rlrun.kube import requests
from rlrun.kube.errors import ApiError
from rlrun.protocol.api_keys import ACCOUNT, KEY_PATTERN

from rlrun_cli.remote.cluster import API_KEY_VARIABLE, RemoteCluster
from rlrun_cli.terminal.errors import INVALID, CliError

TOKEN_SECONDS = 600
RENEW_SECONDS = 120.0
"""Seconds before expiry at which a token is renewed."""


class AccountMissingError(CliError):
    """Error for a ServiceAccount or namespace that is missing."""


class UserToken:
    """The user's API key, or the kubeconfig's token, or a token for the ServiceAccount `rlrun-user`. Thread-safe."""

    def __init__(
        self,
        cluster: RemoteCluster,
        audience: str = "",
        clock: Callable[[], float] = time.time,
        *,
        with_key: bool = True,
    ) -> None:
        """`audience` is the audience of a requested token; empty means the API server. If `with_key` is not set, an API
        key is ignored; otherwise it takes precedence over tokens.
        """
        self._cluster = cluster
        self._with_key = with_key
        self._audience = audience
        self._clock = clock
        self._lock = threading.Lock()
        self._made = ("", 0.0)
        """Latest requested token, and the time at which it expires."""

    def __call__(self) -> str:
        """Return the API key or a valid token. Raises CliError if the key is malformed or no token can be created."""
        if key := self._cluster.own_key() if self._with_key else "":
            if not re.fullmatch(KEY_PATTERN, key):
                raise CliError(
                    f"the value of {API_KEY_VARIABLE} ({len(key)} characters) is not an API key",
                    "set the variable to one line as printed by `rlrun key create`, or unset it",
                    code=INVALID,
                )
            return key
        with self._lock:
            own = self._cluster.bearer()
            if own:
                return own
            token, end = self._made
            if self._clock() > end - RENEW_SECONDS:
                token, end = self._made = self._make()
            return token

    def _make(self) -> tuple[str, float]:
        try:
            request = requests.create_token(self._cluster.namespace, ACCOUNT, TOKEN_SECONDS, self._audience)
            status = self._cluster.transport.send(request)["status"]
            end = datetime.fromisoformat(str(status["expirationTimestamp"])).timestamp()
            return str(status["token"]), end
        except ApiError as error:
            raise self._without_token(error) from error

    def _without_token(self, error: ApiError) -> CliError:
        namespace = self._cluster.namespace
        account = f"--serviceaccount={namespace}:{ACCOUNT}"
        steps = [
            f"kubectl create serviceaccount {ACCOUNT} -n {namespace}",
            f"kubectl create rolebinding {ACCOUNT} --clusterrole=edit {account} -n {namespace}",
        ]
        if error.status == 403:
            name = f"{ACCOUNT}-token"
            steps = [
                f"kubectl create role {name} --verb=create --resource=serviceaccounts/token --resource-name={ACCOUNT} "
                f"-n {namespace}",
                f"kubectl create rolebinding {name} --role={name} --user=YOUR_NAME -n {namespace}",
            ]
        kind = AccountMissingError if error.is_object_missing else CliError
        return kind(
            "your kubeconfig has a client certificate and no token, and no token could be created for ServiceAccount "
            f"{ACCOUNT} in namespace {namespace}: {error.message}",
            "use -n to select a namespace that has this account, or ask an administrator to run these commands",
            details=steps,
        )
