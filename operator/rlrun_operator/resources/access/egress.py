"""Gives an environment access to hosts outside the cluster: a signed grant in the URL of its proxy variables."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from rlrun.constants import EGRESS_PORT
from rlrun.protocol.egress import USER, Destination, EgressGrant, is_listed, sign

from rlrun_operator.config.settings import EgressSettings
from rlrun_operator.resources.base.naming import RunIdentity

KEY = "key"
"""Entry of the Secret with the key that signs grants. The proxy accepts grants signed with the key in any entry."""
LIFETIME = timedelta(days=30)
"""Time from the start of an attempt until its grants expire."""
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
"""Environment variables for the proxy. curl reads only `http_proxy`; other programs read either spelling."""


@dataclass(frozen=True)
class EgressAccess:
    """Key and rules for signing the grants of a run's environments."""

    settings: EgressSettings
    namespace_hosts: tuple[str, ...]
    """Additional hosts that the run's namespace may reach."""
    key: bytes = field(repr=False)
    attempt_start: datetime

    def select_allowed(self, hosts: Iterable[str]) -> list[str]:
        """Return the hosts that the platform allows, among `hosts`."""
        return [host for host in hosts if is_allowed(host, self.settings, self.namespace_hosts)]

    def variables(
        self, identity: RunIdentity, component: str, hosts: Iterable[str], gateway_url: str
    ) -> dict[str, str]:
        """Return the proxy variables for the environment's pod. User code can read them, but they only give access to
        those of `hosts` that the platform allows.
        """
        grant = EgressGrant(
            namespace=identity.namespace,
            run=identity.name,
            uid=identity.uid,
            environment=component,
            hosts=self.select_allowed(hosts),
            expires=self.attempt_start + LIFETIME,
        )
        url = f"http://{USER}:{sign(grant, self.key)}@{self.settings.host}:{EGRESS_PORT}"
        direct = ",".join(("localhost", "127.0.0.1", urlsplit(gateway_url).hostname or ""))
        return {
            **dict.fromkeys(PROXY_VARIABLES, url),
            "NO_PROXY": direct,
            "no_proxy": direct,
            # Node.js reads the proxy variables only with this option.
            "NODE_USE_ENV_PROXY": "1",
        }


def is_allowed(host: str, settings: EgressSettings, namespace_hosts: Iterable[str]) -> bool:
    """Return whether an environment may list the host."""
    return is_listed(Destination.parse(host), (*settings.allowed, *namespace_hosts))
