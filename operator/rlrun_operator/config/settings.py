"""Settings of the operator, for all runs: images, S3, sizes, intervals. The chart writes them to a file:

images:
  orchestrator: {repository: rlrun-orchestrator, tag: "0.2.0", pullPolicy: IfNotPresent}
  trainer:      {repository: rlrun-trainer, tag: "0.2.0"}
  inference:    {repository: vllm/vllm-openai, tag: v0.11.0}
s3:
  endpointUrl: http://s3.rlrun-system.svc:8333
  bucket: rlrun
  prefix: ""
  credentialsSecret: {namespace: rlrun-system, name: rlrun-s3}
computeSizes:
  S: {cpu: "1", memory: 2Gi, workers: 1}
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator
from rlrun.api.base.address_rules import AddressRules, read_network
from rlrun.api.base.addressing_style import AddressingStyle, addressing_problem
from rlrun.api.base.kubernetes_types import Quantity, Resources
from rlrun.api.base.names import EgressHost, Namespace
from rlrun.api.base.pod_shape import PodShape
from rlrun.api.base.schema import Schema
from rlrun.api.run_sections.infrastructure import ComputeSize

from rlrun_operator.config.quantities import to_millis

PullPolicy = Literal["Always", "IfNotPresent", "Never"]


def _none_if_empty(value: Any) -> Any:
    return None if value == "" else value


def _network(value: str) -> str:
    network = read_network(value) if "/" in value else None
    if network is None:
        raise ValueError("is not a network with the length of its prefix, for example 169.254.20.10/32")
    return str(network)


OptionalQuantity = Annotated[Quantity | None, BeforeValidator(_none_if_empty)]
"""Quantity, or None for an empty string."""
Cidr = Annotated[str, AfterValidator(_network)]
"""Network in CIDR notation: `169.254.20.10/32`. Bits of the address behind the prefix become 0."""

RESOURCE_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
"""Names of resources: cpu, nvidia.com/gpu."""


class Image(Schema):
    """A container image."""

    repository: str = Field(min_length=1)
    tag: str = "latest"
    pull_policy: PullPolicy = "IfNotPresent"

    @property
    def reference(self) -> str:
        """Reference for a container's `image`; a digest is joined with @."""
        return f"{self.repository}{'@' if self.tag.startswith('sha256:') else ':'}{self.tag}"


class Images(Schema):
    """Images of the run's pods. Environments, sidecars and fetchers use the orchestrator's image."""

    orchestrator: Image = Image(repository="rlrun-orchestrator")
    trainer: Image = Image(repository="rlrun-trainer")
    inference: Image = Image(repository="vllm/vllm-openai")


class SecretRef(Schema):
    """A Secret by namespace and name."""

    namespace: str = Field(min_length=1)
    name: str = Field(min_length=1)


class ServerCertificate(Schema):
    """Certificate of rlrun-server: a Secret with tls.crt, tls.key and ca.crt."""

    secret: SecretRef
    create: bool = True
    """Makes the Secret if it does not exist, and renews it. False: the platform team does."""


class ApiKeySettings(Schema):
    """API keys of rlrun-server, which keeps their digests in one Secret."""

    secret: SecretRef
    enabled: bool = True
    """Creates the Secret if it does not exist. False: deletes it, and with it all keys."""


class S3Settings(Schema):
    """Location of artifacts, and the credentials for it."""

    endpoint_url: str | None = None
    """URL of an S3-compatible store. None: AWS."""
    addressing_style: AddressingStyle = AddressingStyle.path
    region: str = "us-east-1"
    bucket: str = Field(min_length=3)
    prefix: str = ""
    credentials_secret: SecretRef | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. None: boto3 finds those of a workload identity."""

    @model_validator(mode="after")
    def _check_addressing(self) -> Self:
        if problem := addressing_problem(self.addressing_style, self.endpoint_url, self.bucket):
            raise ValueError(problem)
        return self


class ComputeShape(Schema):
    """Resources of one environment pod."""

    cpu: Quantity
    memory: Quantity
    cpu_limit: OptionalQuantity = None
    """Limit of CPU, for namespaces whose ResourceQuota or LimitRange has one. None: no limit."""
    workers: int = Field(ge=1, le=64)
    """Number of worker processes that run rollouts."""
    ephemeral_storage: OptionalQuantity = None
    """Limit of what the pod keeps on the disk of its node: logs, temporary files, its package. None: no limit."""


DEFAULT_SIZES = {
    ComputeSize.small: ComputeShape(cpu="1", memory="2Gi", workers=1, ephemeral_storage="10Gi"),
    ComputeSize.medium: ComputeShape(cpu="4", memory="8Gi", workers=4, ephemeral_storage="20Gi"),
    ComputeSize.large: ComputeShape(cpu="8", memory="32Gi", workers=8, ephemeral_storage="50Gi"),
}


def _with_default_limit(size: str, shape: Any) -> Any:
    """Return the shape with the size's default limit of storage, if it names none. An empty one removes the limit."""
    if not isinstance(shape, dict) or size not in DEFAULT_SIZES or "ephemeral_storage" in shape:
        return shape
    return {"ephemeralStorage": DEFAULT_SIZES[ComputeSize(size)].ephemeral_storage, **shape}


def _resources(cpu: str, memory: str, limit: str) -> Resources:
    return Resources(requests={"cpu": cpu, "memory": memory}, limits={"memory": limit})


class EphemeralStorage(Schema):
    """Use of the node's disk by pods: logs, temporary files, models, policies and checkpoints.

    Every volume on the disk and every container of a pod has the pod's limit. The kubelet evicts a pod that exceeds it.
    """

    request: OptionalQuantity = "64Mi"
    """Request of each container. None: containers have neither request nor limit, and only the volumes are limited."""
    orchestrator: OptionalQuantity = "20Gi"
    """Limit of an orchestrator, unless `orchestratorResources` has one. None: no limit."""
    model: OptionalQuantity = "2Ti"
    """Limit of a trainer or inference pod, which holds a model, unless its RLModel has one. None: no limit."""


class GracePeriods(Schema):
    """Seconds from SIGTERM to SIGKILL for the pods of each role. The time that processes use is derived from them."""

    orchestrator: int = Field(default=60, ge=30, le=86400)
    """Time for the state of the run, and for records that wait for S3."""
    trainer: int = Field(default=60, ge=20, le=86400)
    """Time for the current step and a last checkpoint. That of the RLModel takes precedence."""
    inference: int = Field(default=30, ge=1, le=86400)
    """Grace period of engines, also those of serving pools. That of the RLModel takes precedence."""
    environment: int = Field(default=10, ge=1, le=86400)


class EnvironmentPods(PodShape):
    """Shape of environment pods, and their isolation from the node, because they run user code."""

    host_users: bool = True
    """Runs the pods in a user namespace of their own if false (`hostUsers` of a pod)."""


class PodSecurityContext(Schema):
    """Security context of the pods of runs and serving pools. None: the cluster decides, as OpenShift does.

    A file that names it replaces it: a key that is left out is None.
    """

    run_as_user: int | None = Field(default=None, ge=1)
    run_as_group: int | None = Field(default=None, ge=0)
    fs_group: int | None = Field(default=None, ge=0)
    seccomp_profile: dict[str, str] | None = None


def _default_security_context() -> PodSecurityContext:
    """Return the context with the user of the images."""
    return PodSecurityContext(
        run_as_user=1000, run_as_group=1000, fs_group=1000, seccomp_profile={"type": "RuntimeDefault"}
    )


class ClusterDns(Schema):
    """DNS servers that environments may reach: pods by the labels of their namespace and their own, and networks."""

    namespace_labels: dict[str, str] = Field(
        default_factory=lambda: {"kubernetes.io/metadata.name": "kube-system"}, min_length=1
    )
    """Labels of the namespace of the DNS pods. At least one, because tenants can label pods as they like."""
    pod_labels: dict[str, str] = Field(default_factory=lambda: {"k8s-app": "kube-dns"})
    """Labels of the DNS pods. Empty: all pods of the namespace."""
    cidrs: list[Cidr] = Field(default_factory=list)
    """Networks of DNS servers that are not pods, for example of NodeLocal DNSCache."""
    port: int = Field(default=53, ge=1, le=65535)
    """Port of the DNS pods, which may differ from that of their Service."""


class EgressRule(Schema):
    """Egress rule of a NetworkPolicy, with destinations: a rule without them would allow all."""

    to: list[dict[str, Any]] = Field(min_length=1)
    """NetworkPolicy peers."""
    ports: list[dict[str, Any]] = Field(default_factory=list)
    """NetworkPolicy ports. Empty: all."""


class Defaults(Schema):
    """Defaults for runs that do not set a value."""

    checkpoint_interval: int = Field(default=50, ge=1)
    """Steps between checkpoints."""


class ServingPoolSettings(PodShape):
    """Settings of serving pools, and the shape of their pods over that of the RLModel's engines.

    Each namespace and base model with deployed adapters has one pool.
    """

    replicas: int = Field(default=1, ge=1, le=256)
    """Number of engines of each pool."""
    max_loras: int = Field(default=8, ge=1, le=256)
    """Adapters that one batch of an engine may use; each takes GPU memory. More may be deployed and are swapped in."""
    max_cpu_loras: int = Field(default=32, ge=1, le=4096)
    """Adapters that an engine keeps in its pod's memory; it reads others from disk on request."""


def _limited_resources(capacity: dict[str, str]) -> dict[str, str]:
    for name, quantity in capacity.items():
        if not RESOURCE_NAME.fullmatch(name):
            raise ValueError(f"`{name}` is not the name of a resource, such as nvidia.com/gpu or cpu")
        if to_millis(quantity) <= 0:
            raise ValueError(f"{name} is {quantity}, but must be positive. Remove it to leave it unlimited")
    return capacity


Capacity = Annotated[dict[str, Quantity], AfterValidator(_limited_resources)]
"""Amounts of resources by name, for example nvidia.com/gpu. Others are not limited."""


class NamespaceQueue(Schema):
    """Part of the queue that one namespace gets."""

    max_runs: int | None = Field(default=None, ge=0)
    """Number of its runs that may have a place. 0: none begins. None: `maxRunsPerNamespace`."""
    capacity: Capacity = Field(default_factory=dict)
    """Resources that its runs with a place may request together."""
    weight: int = Field(default=1, ge=1, le=1000)
    """Share of the namespace, compared with those of others that wait at the same time."""


class QueueSettings(Schema):
    """Queue of runs. Without limits there is none, and every run starts at once."""

    max_runs: int | None = Field(default=None, ge=1)
    """Number of runs that may have a place. None: any number."""
    max_runs_per_namespace: int | None = Field(default=None, ge=1)
    """Number of runs of one namespace that may have a place. None: any number."""
    namespaces: dict[Namespace, NamespaceQueue] = Field(default_factory=dict)
    """Namespaces with a limit or a weight of their own."""
    capacity: Capacity = Field(default_factory=dict)
    """Resources that all runs with a place may request together."""
    backfill_seconds: float = Field(default=0.0, ge=0, le=7 * 86400)
    """Time for which runs that need less may start before the first one whose resources are in use. 0: strict order."""

    @property
    def is_limited(self) -> bool:
        """True if there is a queue."""
        limits = [self.max_runs, self.max_runs_per_namespace, *(n.max_runs for n in self.namespaces.values())]
        capacities = [self.capacity, *(n.capacity for n in self.namespaces.values())]
        return any(capacities) or any(limit is not None for limit in limits)


class EgressSettings(Schema):
    """Egress proxy, through which environments reach hosts outside of the cluster."""

    host: str = Field(min_length=1)
    """Name of the proxy's Service."""
    component: str = "egress-proxy"
    """Label app.kubernetes.io/component of the proxy's pods, in the operator's namespace."""
    allowed: list[EgressHost] = Field(default_factory=list)
    """Hosts that all runs may list in env[].egress."""
    key_secret: SecretRef
    """Secret with the signing key."""
    create_key: bool = True
    """Makes the Secret if it does not exist. False: the platform team does."""


ProxyUrl = Annotated[str, Field(pattern=r"^(https?://[^/@\s]+/?)?$")]
"""URL of a proxy. Empty: none. Without a user: tenants read the variables of their pods."""


class ProxySettings(Schema):
    """Proxy between the cluster and other networks, for the pods of runs and serving pools."""

    https_proxy: ProxyUrl = ""
    """Proxy for https:// URLs."""
    http_proxy: ProxyUrl = ""
    """Proxy for http:// URLs."""
    no_proxy: list[str] = Field(default_factory=list)
    """Hosts, domains, addresses and networks that are reached without a proxy."""


class ApiSettings(Schema):
    """Limit of the requests to the API server, without watches and the Lease. The defaults are Kueue's."""

    qps: float = Field(default=300.0, gt=0, le=10_000)
    """Requests per second."""
    burst: int = Field(default=500, ge=1, le=100_000)
    """Requests that may begin at once after a pause."""


class TenantRole(Schema):
    """A ClusterRole that the operator binds in the namespaces of tenants."""

    cluster_role: str = Field(min_length=1)
    """Its name, and that of the RoleBindings."""
    account: str = Field(min_length=1)
    """ServiceAccount of the operator's namespace that gets the rights."""


class KueueSettings(Schema):
    """Use of Kueue, which admits runs with a queueName."""

    priority_classes: list[str] = Field(default_factory=list)
    """WorkloadPriorityClasses that runs may name by label; * stands for any characters."""


class OperatorSettings(Schema):
    """Settings of the operator process."""

    images: Images = Field(default_factory=Images)
    image_pull_secrets: list[str] = Field(default_factory=list)
    """Names of Secrets in the run's namespace."""
    s3: S3Settings
    storage_server: str = Field(default="http://rlrun-server.rlrun-system.svc:8080", pattern=r"^https?://")
    """URL of rlrun-server, which signs the requests of runs to S3."""
    storage_server_certificate: ServerCertificate | None = None
    """Certificate of rlrun-server. None: it has none (http), or one that the images trust."""
    api_keys: ApiKeySettings | None = None
    """API keys of rlrun-server. None: their Secret is left as it is."""
    storage_server_authority: str = ""
    """Certificates in PEM from which that of rlrun-server must descend. The operator reads them from the Secret when it
    starts. Empty: those that the images trust."""
    ca_bundle_file: Path | None = None
    """File with certificates in PEM that all pods trust beside the public ones. None: none."""
    ca_bundle: str = ""
    """Those certificates of the file that are not public, in PEM. The operator reads them when it starts."""
    proxy: ProxySettings = Field(default_factory=ProxySettings)
    """Proxy of trainers, engines, orchestrators and serving pools. Environments have the egress proxy."""
    compute_sizes: dict[ComputeSize, ComputeShape] = Field(default_factory=lambda: dict(DEFAULT_SIZES))
    orchestrator_resources: Resources = Field(default_factory=lambda: _resources("500m", "1Gi", "8Gi"))
    sidecar_resources: Resources = Field(default_factory=lambda: _resources("50m", "128Mi", "1Gi"))
    fetcher_resources: Resources = Field(default_factory=lambda: _resources("100m", "256Mi", "4Gi"))
    shm_size: Quantity = "2Gi"
    """Shared memory (/dev/shm) of trainer and inference pods; it counts toward their memory."""
    gpu_read_only_root_filesystem: bool = False
    """Makes the root filesystem of containers with GPUs read-only, as it is for all others."""
    ephemeral_storage: EphemeralStorage = Field(default_factory=EphemeralStorage)
    """Limits of the pods' use of the node's disk. Those of environments are in `computeSizes`."""
    security_context: PodSecurityContext = Field(default_factory=_default_security_context)
    """Security context of the pods of runs and serving pools."""
    orchestrator: PodShape = Field(default_factory=PodShape)
    """Shape of orchestrator pods."""
    termination_grace_period_seconds: GracePeriods = Field(default_factory=GracePeriods)
    """Grace periods of pods by role."""
    environments: EnvironmentPods = Field(default_factory=EnvironmentPods)
    """Shape and isolation of environment pods."""
    network_policies: bool = True
    """Creates NetworkPolicies for runs if true."""
    dns: ClusterDns = Field(default_factory=ClusterDns)
    """DNS servers that NetworkPolicies let environments reach, and trainers and engines with `modelEgress`."""
    metrics_peers: list[dict[str, Any]] = Field(default_factory=list)
    """NetworkPolicy peers that may scrape the metrics of all pods of runs and serving pools."""
    model_egress: list[EgressRule] | None = None
    """Destinations that NetworkPolicies let trainers and engines reach beside those that every run needs: the S3 server
    and the sources of models. None: they reach all."""
    reserved_secret_names: list[str] = Field(default_factory=lambda: ["*-s3"])
    """Names of Secrets that spec.envFrom and RLModels must not name; * stands for any characters. The chart gives the
    Secret with the S3 credentials a name that ends in -s3."""
    secret_label: str = Field(default="", pattern=r"^([A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?)?$")
    """Label that the Secrets of spec.envFrom must have: `key`, or `key=value`. Empty: none."""
    priority_classes: list[str] = Field(default_factory=list)
    """PriorityClasses that runs may use; * stands for any characters."""
    environment_owners: dict[str, list[str]] = Field(default_factory=dict)
    """Namespaces that may use the packages of an owner; * stands for any characters. Packages of others are public."""
    egress: EgressSettings | None = None
    """None: environments reach nothing outside of the cluster."""
    kueue: KueueSettings | None = None
    """None: the platform does not use Kueue, and a run with a queueName is refused."""
    private_addresses: list[str] = Field(default_factory=list)
    """Addresses outside of the internet that runs may name: host names (* stands for any characters), IP addresses and
    networks."""
    defaults: Defaults = Field(default_factory=Defaults)
    serving: ServingPoolSettings = Field(default_factory=ServingPoolSettings)
    """Settings of serving pools."""

    queue: QueueSettings = Field(default_factory=QueueSettings)
    """Limits of the runs that may have pods at a time."""

    poll_seconds: float = Field(default=2.0, gt=0, le=60)
    """Seconds between reconciles of a run that starts, ends or has a problem, and between changes of a trained one."""
    resync_seconds: float = Field(default=120.0, ge=5, le=3600)
    """Seconds between two lists of all runs."""
    artifact_sweep_seconds: float = Field(default=900.0, ge=1, le=86400)
    """Seconds, give or take a fifth, between two lists of an active run's files in S3 while no upload is due."""
    api: ApiSettings = Field(default_factory=ApiSettings)
    """Limit of the requests to the API server."""
    workers: int = Field(default=8, ge=1, le=256)
    """Number of runs reconciled concurrently."""
    s3_threads: int = Field(default=8, ge=1, le=64)
    """Number of concurrent S3 calls."""
    artifact_deletion_seconds: float = Field(default=300.0, gt=0)
    """Time limit in seconds for deleting a run's files in S3 (artifactPolicy Delete)."""
    watch_namespaces: list[str] = Field(default_factory=list)
    """Namespaces to watch. Empty: all."""
    namespace_label: str = Field(default="", pattern=r"^([^=]+=[^=]+)?$")
    """Label of the namespaces of tenants, as `key=value`. Not used with `watch_namespaces`. Empty: all namespaces are
    tenants."""
    tenant_roles: list[TenantRole] = Field(default_factory=list)
    """Roles that are bound in each namespace with `namespace_label`. Empty: someone else binds them."""
    ip_family: Literal["IPv4", "IPv6"] | None = None
    """Family of the pods' addresses, on which engines listen. None: IPv4."""
    status_url_template: str = "http://{name}-orchestrator.{namespace}.svc:8080/status"
    """URL of a run's orchestrator; {name} and {namespace} are the run's."""
    serving_url_template: str = "http://{ip}:8001/adapters"
    """URL of the sidecar of a serving pool; {ip}, {name} and {namespace} are the pod's."""
    kubeconfig: str | None = None
    """Path of a kubeconfig for an operator outside the cluster. None: the pod's ServiceAccount."""
    lease_namespace: str = "rlrun-system"
    lease_name: str = "rlrun-operator"
    lease_seconds: float = Field(default=15.0, ge=10, le=60)
    """Seconds without a renewal of the Lease after which another operator takes over. The active one stops before."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """Port of /healthz, /readyz and /metrics."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def tenant_labels(self) -> dict[str, str]:
        """Label of the namespaces of tenants. Empty: it does not decide."""
        key, _, value = self.namespace_label.partition("=")
        return {} if self.watch_namespaces or not key else {key: value}

    @field_validator("private_addresses")
    @classmethod
    def _parsable_addresses(cls, entries: list[str]) -> list[str]:
        AddressRules.parse(entries)
        return entries

    @model_validator(mode="before")
    @classmethod
    def _sizes_over_defaults(cls, data: object) -> object:
        # Settings of one size must not remove the defaults of the others.
        if isinstance(data, dict):
            for key in ("computeSizes", "compute_sizes"):
                if isinstance(data.get(key), dict):
                    own = {size: _with_default_limit(size, shape) for size, shape in data[key].items()}
                    data = {**data, key: {**{k.value: v for k, v in DEFAULT_SIZES.items()}, **own}}
        return data


VARIABLE = "RLRUN_SETTINGS"
DEFAULT_PATH = Path("/etc/rlrun/settings.yaml")


class SettingsError(Exception):
    """The operator cannot start with these settings."""


def load_settings(environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Load the YAML or JSON file that RLRUN_SETTINGS names. Raises SettingsError.

    The family of addresses follows the API server's Service, as this pod sees it, unless the file names one.
    """
    path = Path(environment.get(VARIABLE) or DEFAULT_PATH)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"Cannot read the settings file {path} ({error.strerror}). Set {VARIABLE} to its path."
        ) from error
    settings = parse_settings(text, str(path))
    found = "IPv6" if ":" in environment.get("KUBERNETES_SERVICE_HOST", "") else "IPv4"
    return settings.model_copy(update={"ip_family": settings.ip_family or found})


def parse_settings(text: str, source: str = "settings") -> OperatorSettings:
    """Parse settings in YAML or JSON. Raises SettingsError."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{source} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise SettingsError(f"{source} must be a mapping of settings, but is {json.dumps(data)[:80]}")
    try:
        return OperatorSettings.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or source}: {e['msg']}" for e in error.errors()]
        raise SettingsError(f"{source} has {len(lines)} invalid settings:\n" + "\n".join(lines)) from error
