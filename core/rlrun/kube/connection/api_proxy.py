"""Proxy before an API server.

The synchronous client reads no `proxy-url` of a kubeconfig and takes HTTP_PROXY for https, the asynchronous one reads
no variables, and few clients know networks in NO_PROXY. Both get the proxy that is chosen here.
"""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from rlrun.api.base.proxy_rules import ProxyRules


def api_proxy(host: str, proxy_url: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the proxy before the API server at the URL `host`, None if there is none.

    That is `proxy-url` of the kubeconfig, regardless of NO_PROXY, or else that of the variables, as for kubectl. No
    proxy is before the API server of a pod's own cluster.
    """
    if proxy_url:
        return proxy_url
    own = environment.get("KUBERNETES_SERVICE_HOST", "")
    if own and urlsplit(host).hostname == own:
        return None
    return ProxyRules.of_environment(environment).proxy_of(host)
