"""Connections of pods to servers outside the cluster: certificate authorities and the platform's proxy.

An init container gets the certificates in a variable, and writes them and the public ones to a file. A ConfigMap
would need a copy in each namespace, where users could change it. Environment pods do not use the platform's proxy,
because user code may only reach the egress proxy.
"""

from rlrun.constants import CA_BUNDLE_CONTAINER, CA_BUNDLE_DIR, CA_BUNDLE_PATH, CA_CLIENT_VARIABLES, Role
from rlrun.kube.objects import Obj

from rlrun_operator.config.settings import OperatorSettings, ProxySettings

VOLUME = "ca-bundle"
VOLUME_SIZE = "4Mi"


def proxy_variables(proxy: ProxySettings) -> dict[str, str]:
    """Return the proxy variables in upper and lower case. curl reads only `http_proxy`; other programs read either
    spelling.
    """
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
    """Add the volume with the authorities to a pod's spec, and prepend the init container `writer`, which fills it."""
    spec["initContainers"] = [writer, *spec.get("initContainers", ())]
    spec["volumes"].append({"name": VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": VOLUME_SIZE}})


def inject_proxy_and_ca_env(spec: Obj, settings: OperatorSettings, role: Role) -> None:
    """Mount the CA bundle and set the CA-bundle and proxy variables in every container of the pod's spec except the one
    that writes the bundle. Variables that a container already sets are kept. Environment pods get no proxy variables.
    """
    variables = {
        **(dict.fromkeys(CA_CLIENT_VARIABLES, CA_BUNDLE_PATH) if settings.ca_bundle else {}),
        **(proxy_variables(settings.proxy) if role is not Role.environment else {}),
    }
    for made in (*spec.get("initContainers", ()), *spec["containers"]):
        if made["name"] == CA_BUNDLE_CONTAINER:
            continue
        # A container from a podTemplate may have neither variables nor mounts.
        env = made.setdefault("env", [])
        named = {entry["name"] for entry in env}
        env += [{"name": k, "value": v} for k, v in variables.items() if k not in named]
        if settings.ca_bundle:
            made.setdefault("volumeMounts", []).append({"name": VOLUME, "mountPath": CA_BUNDLE_DIR, "readOnly": True})
