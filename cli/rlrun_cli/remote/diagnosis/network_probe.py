"""Probes from inside pods whether images can be pulled, the hub is reachable and NetworkPolicies are enforced.

A listener pod contacts the hub and accepts connections. A connector pod repeatedly connects to the listener. After the
first connection, the probe creates a NetworkPolicy that forbids connections from the connector. Finally, the probe
deletes both pods and the policy.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

from rlrun.installation.checks import Finding
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import NETWORK_POLICY, POD, RLMODEL
from rlrun.kube.objects import Obj

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.diagnosis.gpu_checks import MISSING_RIGHT, operator_settings
from rlrun_cli.terminal.errors import CliError, UnreachableError

T = TypeVar("T")

START_SECONDS = 90.0
"""Time limit in seconds for a pod to start, including the image pull."""
ANSWER_SECONDS = 30.0
"""Time limit in seconds for a started pod to report whether it reached the hub."""
POLICY_SECONDS = 20.0
"""Time limit in seconds for a policy to take effect."""
LONGEST_SECONDS = START_SECONDS + ANSWER_SECONDS + START_SECONDS + POLICY_SECONDS
"""Maximum duration of a probe in seconds."""
PAUSE_SECONDS = 1.0
LIFETIME_SECONDS = 300
"""Time in seconds after which Kubernetes stops the pods, in case the command was killed."""
PORT = 8080
LABEL = "rlrun.dev/doctor"
HUB = "https://huggingface.co"
ENDPOINT_VARIABLE = "HF_ENDPOINT"
REFUSED = "orchestrator pods would be rejected for the same reason: correct their security context \
(runs.securityContext in the chart) or placement (runs.orchestrator), or what the namespace allows"
SECURITY_CONTEXT: Obj = {
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Default security context of the operator, for settings without one."""
PLACEMENT = ("nodeSelector", "tolerations", "affinity", "runtimeClassName", "schedulerName", "priorityClassName")
"""Fields of `runs.orchestrator` that are copied to the spec of the probe's pods."""
UNKNOWN_AUTHORITY = ("self-signed certificate", "local issuer certificate")
"""OpenSSL's error texts for a certificate from a private authority."""
RIGHTS = (
    ("create", "", "pods", ""),
    ("get", "", "pods", ""),
    ("delete", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("create", "networking.k8s.io", "networkpolicies", ""),
    ("delete", "networking.k8s.io", "networkpolicies", ""),
)
LISTENER = f"""
import os, socket, urllib.error, urllib.request
try:
    server = socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)
except OSError:
    server = socket.create_server(("", {PORT}))
def ask():
    try:
        urllib.request.urlopen(os.environ["HUB"] + "/api/models?limit=1", timeout=15).read(1)
    except urllib.error.HTTPError:
        pass
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
    return "reached"
print("hub", ask() if os.environ["HUB"] else "not asked", flush=True)
while True:
    server.accept()[0].close()
"""
CONNECTOR = f"""
import os, socket, time
while True:
    try:
        socket.create_connection((os.environ["PEER"], {PORT}), 2).close()
        print("open", flush=True)
    except OSError:
        print("closed", flush=True)
    time.sleep(0.5)
"""


class NetworkProbe:
    """Probe that starts pods in the selected namespace.

    The pods have the security context, placement and proxy of orchestrators. They lack the certificates of private
    authorities (`caBundle`), because the ConfigMap or Secret with these certificates is in another namespace.
    """

    def __init__(
        self,
        api: RemoteCluster,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._sleep = sleep
        self._clock = clock
        self._name = f"rlrun-doctor-{uuid.uuid4().hex[:8]}"
        self._left: dict[str, str] = {}
        """Objects that could not be deleted (`kind/name`), with the error."""

    def findings(self) -> list[Finding]:
        """Run the probe and return its findings. A CliError or ApiError becomes a finding, and so do objects that could
        not be deleted.
        """
        found = self._outcome()
        if self._left:
            why = "; ".join(f"{name} was not deleted: {error}" for name, error in self._left.items())
            hint = f"delete them: kubectl -n {self._api.namespace} delete {' '.join(self._left)}"
            found.append(Finding("network", why, hint))
        return found

    def _outcome(self) -> list[Finding]:
        try:
            return self._findings()
        except ApiError as error:
            if error.status != 403:
                return [
                    Finding(
                        "network", f"not checked: {error}", "try again; ask the platform team if the problem persists"
                    )
                ]
            return [Finding("network", f"not checked; you lack the right to {error.action}", MISSING_RIGHT)]
        except CliError as error:
            return [Finding("network", f"not checked: {error.message}", error.hint or MISSING_RIGHT)]

    def _findings(self) -> list[Finding]:
        missing = [f"{v} {r}{f'/{s}' if s else ''}" for v, g, r, s in RIGHTS if not self._api.may(v, g, r, s)]
        if missing:
            what = f"not checked; you lack the rights to {', '.join(missing)} in namespace {self._api.namespace}"
            return [Finding("network", what, MISSING_RIGHT)]
        settings = operator_settings(self._api)
        image = (settings.get("images") or {}).get("orchestrator")
        if not image:
            return [Finding("network", "not checked: no operator settings were found", "install the rlrun chart")]
        hub = hub_endpoint(self._api.snapshot(RLMODEL)[0])
        try:
            return self._probe(settings, image_reference(image), hub)
        finally:
            for kind, name in ((POD, "listener"), (POD, "connector"), (NETWORK_POLICY, "connector")):
                try:
                    self._api.delete(kind, f"{self._name}-{name}", missing_ok=True)
                except (ApiError, CliError) as error:
                    self._left[f"{kind.kind.lower()}/{self._name}-{name}"] = str(error)

    def _probe(self, settings: Mapping[str, Obj], image: str, hub: str) -> list[Finding]:
        self._start("listener", LISTENER, {"HUB": hub, **proxy_variables(settings)}, settings, image)
        pod = self._wait_for(START_SECONDS, lambda: self._running("listener"))
        if pod is None:
            return [self._no_start("listener", image)]
        answer = self._wait_for(ANSWER_SECONDS, lambda: self._last_line("listener"))
        found = [
            Finding("images", f"pods in namespace {self._api.namespace} can pull {image}"),
            _hub_finding(hub, (answer or "hub no answer").removeprefix("hub "), bool(settings.get("caBundleFile"))),
        ]
        self._start("connector", CONNECTOR, {"PEER": str(pod["status"]["podIP"])}, settings, image)
        if not self._wait_for(START_SECONDS, lambda: self._last_line("connector") == "open"):
            return [
                *found,
                Finding(
                    "network policies",
                    f"not checked; pods in namespace {self._api.namespace} did not reach each other within "
                    f"{START_SECONDS:g} s",
                    "check that a second pod can start, and allow connections between pods, which every run needs",
                ),
            ]
        policy = {
            "apiVersion": NETWORK_POLICY.api_version,
            "kind": NETWORK_POLICY.kind,
            "metadata": {"name": f"{self._name}-connector", "labels": {LABEL: self._name}},
            "spec": {"podSelector": {"matchLabels": {LABEL: f"{self._name}-connector"}}, "policyTypes": ["Egress"]},
        }
        self._create(policy)
        if self._wait_for(POLICY_SECONDS, lambda: self._last_line("connector") == "closed"):
            return [*found, Finding("network policies", "enforced: a policy blocked a pod's connections")]
        return [
            *found,
            Finding(
                "network policies",
                f"not enforced: a pod can still connect {POLICY_SECONDS:g} s after a policy forbade its connections",
                "install a network plugin that enforces NetworkPolicies: otherwise nothing isolates user code from "
                "the network (docs/security.md)",
            ),
        ]

    def _start(self, role: str, program: str, env: Mapping[str, str], settings: Mapping[str, Obj], image: str) -> None:
        name = f"{self._name}-{role}"
        container = {
            "name": "probe",
            "image": image,
            "command": ["python", "-c", program],
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "128Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
        }
        shape = settings.get("orchestrator") or {}
        context = settings.get("securityContext", SECURITY_CONTEXT) or {}
        spec: Obj = {
            **{key: shape[key] for key in PLACEMENT if shape.get(key)},
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFETIME_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {**{k: v for k, v in context.items() if v is not None}, "runAsNonRoot": True},
            "imagePullSecrets": [{"name": str(secret)} for secret in settings.get("imagePullSecrets") or []],
            "containers": [container],
        }
        labels = {**(shape.get("labels") or {}), LABEL: name, "app.kubernetes.io/name": "rlrun-doctor"}
        metadata = {"name": name, "labels": labels, "annotations": shape.get("annotations") or {}}
        self._create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def _create(self, obj: Obj) -> None:
        try:
            self._api.create(obj)
        except UnreachableError:
            raise
        except CliError as error:
            # The user has the right; the object itself was rejected.
            raise CliError(error.message, REFUSED) from None

    def _running(self, role: str) -> Obj | None:
        pod = self._api.read(POD, f"{self._name}-{role}")
        status = (pod or {}).get("status") or {}
        return pod if status.get("phase") == "Running" and status.get("podIP") else None

    def _last_line(self, role: str) -> str:
        try:
            lines = self._api.log(f"{self._name}-{role}", "probe", follow=False, tail=1, previous=False)
            return next((line.strip() for line in lines), "")
        except CliError:
            return ""  # The container has not started.

    def _no_start(self, role: str, image: str) -> Finding:
        pod = self._api.read(POD, f"{self._name}-{role}") or {}
        status = pod.get("status") or {}
        states = [(c.get("state") or {}).get("waiting") or {} for c in status.get("containerStatuses") or []]
        words = [f"{s.get('reason')}: {s.get('message', '')}" for s in states if s]
        words += [f"{c.get('reason')}: {c.get('message')}" for c in status.get("conditions") or [] if c.get("message")]
        why = words[0] if words else f"its phase is {status.get('phase')}"
        return Finding(
            "images",
            f"a pod with {image} did not start within {START_SECONDS:g} s: {why}",
            "correct what the message names: the image, runs.imagePullSecrets, or nodeSelector and tolerations of "
            "runs.orchestrator",
        )

    def _wait_for(self, seconds: float, look: Callable[[], T]) -> T | None:
        end = self._clock() + seconds
        while not (found := look()):
            if self._clock() >= end:
                return None
            self._sleep(PAUSE_SECONDS)
        return found


def hub_endpoint(models: list[Obj]) -> str:
    """Return the URL of the hub for the first RLModel with an hf:// source, or an empty string if there is none."""
    for model in models:
        if str(model["spec"].get("source")).startswith("hf://"):
            env = (model["spec"].get("trainer") or {}).get("env") or []
            named = [str(v["value"]) for v in env if v.get("name") == ENDPOINT_VARIABLE and v.get("value")]
            return (named[0] if named else HUB).rstrip("/")
    return ""


def image_reference(image: Obj) -> str:
    """Return the reference, such as `repository:tag`, for an image in the operator's settings."""
    tag = str(image.get("tag") or "latest")
    return f"{image['repository']}{'@' if tag.startswith('sha256:') else ':'}{tag}"


def proxy_variables(settings: Mapping[str, Obj]) -> dict[str, str]:
    """Return the proxy variables from the operator's settings, in upper and lower case."""
    proxy = settings.get("proxy") or {}
    if not proxy.get("httpsProxy") and not proxy.get("httpProxy"):
        return {}
    values = {
        "HTTPS_PROXY": proxy.get("httpsProxy"),
        "HTTP_PROXY": proxy.get("httpProxy"),
        "NO_PROXY": ",".join(proxy.get("noProxy") or []),
    }
    return {spelling: value for name, value in values.items() if value for spelling in (name, name.lower())}


def _hub_finding(hub: str, answer: str, has_authorities: bool) -> Finding:
    if not hub:
        return Finding("hub", "no model comes from the Hugging Face hub; not checked")
    if answer == "reached":
        return Finding("hub", f"pods can reach {hub}")
    if any(words in answer for words in UNKNOWN_AUTHORITY):
        if has_authorities:
            why = "a private authority signed it, and only pods of runs have the chart's caBundle"
            return Finding("hub", f"pods can reach {hub}; its certificate was not checked, because {why}")
        return Finding(
            "hub",
            f"pods do not trust the certificate of {hub}: {answer}",
            "set caBundle in the chart to the authority's certificate; the authority may be a company proxy",
        )
    return Finding(
        "hub",
        f"pods cannot reach {hub}: {answer}",
        "allow access from the nodes' network, set proxy in the chart, set HF_ENDPOINT in the RLModels to a mirror, or "
        "use s3:// sources",
    )
