"""Connections of pods to servers outside of the cluster: authorities that they trust, and the proxy of the platform.

The certificates come as a variable of an init container, which writes a file with them and the public ones. A ConfigMap
would need a copy in each namespace, where users could change it. Pods of environments have no proxy of the platform:
user code reaches the egress proxy only.
"""

from rlrun.constants import CA_BUNDLE_CONTAINER, CA_BUNDLE_DIR, CA_BUNDLE_PATH, CA_CLIENT_VARIABLES, Role
from rlrun.kube.objects import Obj

from rlrun_operator.config.settings import OperatorSettings, ProxySettings

VOLUME = "ca-bundle"
VOLUME_SIZE = "4Mi"


def proxy_variables(proxy: ProxySettings) -> dict[str, str]:
    """Return the variables of the proxy, in upper and lower case: curl reads http_proxy only, other programs either."""
    if not proxy.https_proxy and not proxy.http_proxy:
        return {}
    values = {
        "HTTPS_PROXY": proxy.https_proxy,
        "HTTP_PROXY": proxy.http_proxy,
        "NO_PROXY": ",".join(proxy.no_proxy),
    }
    set_values = {name: value for name, value in values.items() if value}
    return {**set_values, **{name.lower(): value for name, value in set_values.items()}}


def add_authorities(spec: Obj, writer: Obj) -> None:
    """Add the volume with the authorities to a pod's spec, and `writer`, the init container that writes them, first."""
    spec["initContainers"] = [writer, *spec.get("initContainers", ())]
    spec["volumes"].append({"name": VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": VOLUME_SIZE}})


def connect(spec: Obj, settings: OperatorSettings, role: Role) -> None:
    """Give all containers of a pod's spec the authorities and the proxy, unless they have such variables already."""
    variables = {
        **(dict.fromkeys(CA_CLIENT_VARIABLES, CA_BUNDLE_PATH) if settings.ca_bundle else {}),
        **(proxy_variables(settings.proxy) if role is not Role.environment else {}),
    }
    for made in (*spec.get("initContainers", ()), *spec["containers"]):
        if made["name"] == CA_BUNDLE_CONTAINER:
            continue
        # A container of a podTemplate may have neither variables nor mounts.
        env = made.setdefault("env", [])
        named = {entry["name"] for entry in env}
        env += [{"name": k, "value": v} for k, v in variables.items() if k not in named]
        if settings.ca_bundle:
            made.setdefault("volumeMounts", []).append({"name": VOLUME, "mountPath": CA_BUNDLE_DIR, "readOnly": True})
