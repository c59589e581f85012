"""Settings of the operator, for all runs: images, S3, sizes, intervals. The chart writes them to a file:

images:
  orchestrator: {repository: rlrun-orchestrator, tag: "0.2.0", pullPolicy: IfNotPresent}
  trainer:      {repository: rlrun-trainer, tag: "0.2.0"}
  inference:    {repository: vllm/vllm-openai, tag: v0.11.0}
s3:
  endpoint: http://s3.rlrun-system.svc:8333
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
from rlrun.api.base.kubernetes_types import Quantity, Resources
from rlrun.api.base.names import EgressHost, Namespace
from rlrun.api.base.pod_shape import PodShape
from rlrun.api.base.s3_connection import S3Connection
from rlrun.api.base.schema import Schema
from rlrun.api.run_sections.infrastructure import ComputeSize

from rlrun_operator.config.quantities import to_millis

PullPolicy = Literal["Always", "IfNotPresent", "Never"]


def _none_if_empty(value: Any) -> Any:
    return None if value == "" else value


def _network(value: str) -> str:
    network = read_network(value) if "/" in value else None
    if network is None:
        raise ValueError("is not a network in CIDR notation, such as 169.254.20.10/32")
    return str(network)


OptionalQuantity = Annotated[Quantity | None, BeforeValidator(_none_if_empty)]
"""Quantity, or None for an empty string."""
Cidr = Annotated[str, AfterValidator(_network)]
"""Network in CIDR notation: `169.254.20.10/32`. Host bits are set to 0."""

RESOURCE_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
"""Pattern of resource names, such as cpu or nvidia.com/gpu."""


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
    """Reference to a Secret by namespace and name."""

    namespace: str = Field(min_length=1)
    name: str = Field(min_length=1)


class ServerCertificate(Schema):
    """Certificate of rlrun-server: a Secret with tls.crt, tls.key and ca.crt."""

    secret: SecretRef
    create: bool = True
    """Creates and renews the Secret. If false, the platform team must do so."""


class ApiKeySettings(Schema):
    """API keys of rlrun-server, whose digests are stored in one Secret."""

    secret: SecretRef
    enabled: bool = True
    """Creates the Secret. If false, the Secret is deleted with all keys."""


class S3Settings(S3Connection):
    """Connection to S3, the bucket for artifacts, and the Secret with the credentials."""

    bucket: str = Field(min_length=3)
    prefix: str = ""
    credentials_secret: SecretRef | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. If unset, boto3 uses a workload identity."""

    @model_validator(mode="after")
    def _check_addressing(self) -> Self:
        if problem := self.problem_of(self.bucket):
            raise ValueError(problem)
        return self


class ComputeShape(Schema):
    """Resources of one environment pod."""

    cpu: Quantity
    memory: Quantity
    cpu_limit: OptionalQuantity = None
    """CPU limit, for namespaces whose ResourceQuota or LimitRange requires one. Unlimited if unset."""
    workers: int = Field(ge=1, le=64)
    """Number of worker processes that run rollouts."""
    ephemeral_storage: OptionalQuantity = None
    """Limit on the pod's ephemeral storage: logs, temporary files and the environment's package. If unset, the size's
    default applies. If empty, there is no limit.
    """


DEFAULT_SIZES = {
    ComputeSize.small: ComputeShape(cpu="1", memory="2Gi", workers=1, ephemeral_storage="10Gi"),
    ComputeSize.medium: ComputeShape(cpu="4", memory="8Gi", workers=4, ephemeral_storage="20Gi"),
    ComputeSize.large: ComputeShape(cpu="8", memory="32Gi", workers=8, ephemeral_storage="50Gi"),
}


def _with_default_limit(size: str, shape: Any) -> Any:
    """Add the size's default storage limit to a shape that has none. An empty limit in the shape removes it."""
    if not isinstance(shape, dict) or size not in DEFAULT_SIZES or "ephemeral_storage" in shape:
        return shape
    return {"ephemeralStorage": DEFAULT_SIZES[ComputeSize(size)].ephemeral_storage, **shape}


def _resources(cpu: str, memory: str, limit: str) -> Resources:
    return Resources(requests={"cpu": cpu, "memory": memory}, limits={"memory": limit})


class EphemeralStorage(Schema):
    """Limits on ephemeral storage: logs, temporary files, models, policies and checkpoints on the node's disk.

    A pod's limit is set on each of its containers and disk volumes. The kubelet evicts a pod that exceeds its limit.
    """

    request: OptionalQuantity = "64Mi"
    """Request of each container. If empty, containers have no request or limit, and only the volumes are limited."""
    orchestrator: OptionalQuantity = "20Gi"
    """Limit for an orchestrator, unless set in `orchestratorResources`, and for a pod that fills a weights cache,
    unless set in `fetcherResources`. Empty means unlimited.
    """
    model: OptionalQuantity = "2Ti"
    """Limit for a trainer or inference pod, which stores a model, unless set in the RLModel. If empty, there is no
    limit.
    """


class GracePeriods(Schema):
    """Seconds from SIGTERM to SIGKILL for the pods of each role. The shutdown deadlines of processes are derived from
    them.
    """

    orchestrator: int = Field(default=60, ge=30, le=86400)
    """Grace period of orchestrators, which save the state of the run and upload pending records."""
    trainer: int = Field(default=60, ge=20, le=86400)
    """Grace period of trainers, which complete the step and save a last checkpoint. The RLModel's setting takes
    precedence.
    """
    inference: int = Field(default=30, ge=1, le=86400)
    """Grace period of engines, including those of serving pools. The RLModel's setting takes precedence."""
    environment: int = Field(default=10, ge=1, le=86400)


class EnvironmentPods(PodShape):
    """Shape and isolation of environment pods, which run user code."""

    host_users: bool = True
    """Value of `hostUsers` in the pods. If false, each pod runs in its own user namespace."""


class PodSecurityContext(Schema):
    """Security context of the pods of runs and serving pools.

    A security context in the settings file replaces the default one completely: a missing key is unset. Unset fields
    are left to the cluster; OpenShift, for example, chooses their values.
    """

    run_as_user: int | None = Field(default=None, ge=1)
    run_as_group: int | None = Field(default=None, ge=0)
    fs_group: int | None = Field(default=None, ge=0)
    seccomp_profile: dict[str, str] | None = None


def _default_security_context() -> PodSecurityContext:
    """Return the security context with the user of the images."""
    return PodSecurityContext(
        run_as_user=1000, run_as_group=1000, fs_group=1000, seccomp_profile={"type": "RuntimeDefault"}
    )


class ClusterDns(Schema):
    """DNS servers that environments may reach: pods, selected by pod and namespace labels, and networks."""

    namespace_labels: dict[str, str] = Field(
        default_factory=lambda: {"kubernetes.io/metadata.name": "kube-system"}, min_length=1
    )
    """Labels of the namespace of the DNS pods. At least one is required, because tenants can label their own pods
    freely.
    """
    pod_labels: dict[str, str] = Field(default_factory=lambda: {"k8s-app": "kube-dns"})
    """Labels of the DNS pods. If empty, all pods of the namespace are selected."""
    cidrs: list[Cidr] = Field(default_factory=list)
    """Networks of DNS servers that are not pods, such as NodeLocal DNSCache."""
    port: int = Field(default=53, ge=1, le=65535)
    """Port of the DNS pods, which may differ from the port of their Service."""


class EgressRule(Schema):
    """Egress rule of a NetworkPolicy. Requires destinations, because a rule without them would allow all traffic."""

    to: list[dict[str, Any]] = Field(min_length=1)
    """NetworkPolicy peers."""
    ports: list[dict[str, Any]] = Field(default_factory=list)
    """NetworkPolicy ports. If empty, all ports."""


class Defaults(Schema):
    """Defaults for runs that do not set a value."""

    checkpoint_interval: int = Field(default=50, ge=1)
    """Steps between checkpoints."""


class ServingPoolSettings(PodShape):
    """Settings for serving pools, and the shape of their pods, which takes precedence over the RLModel's shape. Each
    namespace has one pool per base model with deployed adapters.
    """

    replicas: int = Field(default=1, ge=1, le=256)
    """Number of engines of each pool."""
    max_loras: int = Field(default=8, ge=1, le=256)
    """Maximum number of adapters in one batch of an engine. Each uses GPU memory. More adapters can be deployed; the
    engine swaps them in on request.
    """
    max_cpu_loras: int = Field(default=32, ge=1, le=4096)
    """Maximum number of adapters that an engine keeps in CPU memory. Others are read from disk on request."""


def _limited_resources(capacity: dict[str, str]) -> dict[str, str]:
    for name, quantity in capacity.items():
        if not RESOURCE_NAME.fullmatch(name):
            raise ValueError(f"`{name}` is not a resource name. Valid examples: nvidia.com/gpu, cpu")
        if to_millis(quantity) <= 0:
            raise ValueError(f"{name} is {quantity}, but must be positive. To set no limit, remove the entry")
    return capacity


Capacity = Annotated[dict[str, Quantity], AfterValidator(_limited_resources)]
"""Amounts of resources by name, for example nvidia.com/gpu. Resources that are not listed are not limited."""


class NamespaceQueue(Schema):
    """Quota and weight of one namespace in the queue."""

    max_runs: int | None = Field(default=None, ge=0)
    """Maximum number of admitted runs. 0 admits none. Defaults to `maxRunsPerNamespace`."""
    capacity: Capacity = Field(default_factory=dict)
    """Maximum resources that the admitted runs of the namespace may request in total."""
    weight: int = Field(default=1, ge=1, le=1000)
    """Weight of the namespace in fair sharing: weight 2 gets twice the resources of weight 1 while both have waiting
    runs.
    """


class QueueSettings(Schema):
    """Queue of runs without a queueName. If no limit is set, only runs that use a shared pool may have to wait."""

    max_runs: int | None = Field(default=None, ge=1)
    """Maximum number of admitted runs. Unlimited if unset."""
    max_runs_per_namespace: int | None = Field(default=None, ge=1)
    """Maximum number of admitted runs per namespace. Unlimited if unset."""
    namespaces: dict[Namespace, NamespaceQueue] = Field(default_factory=dict)
    """Namespaces with their own limits or weight."""
    capacity: Capacity = Field(default_factory=dict)
    """Maximum resources that all admitted runs may request in total."""
    backfill_seconds: float = Field(default=0.0, ge=0, le=7 * 86400)
    """Maximum seconds for which runs that need fewer resources may start ahead of the first run in the queue while its
    resources are in use. 0 enforces strict order.
    """

    @property
    def is_limited(self) -> bool:
        """True if a limit is set. Otherwise, the queue contains only runs that use a shared pool."""
        limits = [self.max_runs, self.max_runs_per_namespace, *(n.max_runs for n in self.namespaces.values())]
        capacities = [self.capacity, *(n.capacity for n in self.namespaces.values())]
        return any(capacities) or any(limit is not None for limit in limits)


class EgressSettings(Schema):
    """Egress proxy, through which environments reach hosts outside the cluster."""

    host: str = Field(min_length=1)
    """Name of the proxy's Service."""
    component: str = "egress-proxy"
    """Value of the label app.kubernetes.io/component on the proxy's pods, which run in the operator's namespace."""
    allowed: list[EgressHost] = Field(default_factory=list)
    """Hosts that all runs may list in env[].egress."""
    key_secret: SecretRef
    """Secret with the signing key."""
    create_key: bool = True
    """Creates the Secret. If false, the platform team must do so."""


ProxyUrl = Annotated[str, Field(pattern=r"^(https?://[^/@\s]+/?)?$")]
"""URL of a proxy, or empty. Must not contain credentials, because tenants can read the variables of their pods."""


class ProxySettings(Schema):
    """Outgoing HTTP proxy for the pods of runs and serving pools."""

    https_proxy: ProxyUrl = ""
    """Proxy for https:// URLs."""
    http_proxy: ProxyUrl = ""
    """Proxy for http:// URLs."""
    no_proxy: list[str] = Field(default_factory=list)
    """Hosts, domains, addresses and networks that are reached without a proxy."""


class GarbageSettings(Schema):
    """Garbage collection of files in S3 and objects in the cluster. A duration is a number followed by m, h or d;
    `olderThan` accepts s as well.
    """

    interval: str = Field(default="24h", pattern=r"^[1-9][0-9]{0,5}[mhd]$")
    """Time between two sweeps."""
    older_than: str = Field(default="24h", pattern=r"^[0-9]{1,6}[smhd]$")
    """Minimum age of the items that a sweep finds."""
    delete: bool = False
    """Deletes the items that a sweep finds. If false, sweeps only report them."""


class ApiSettings(Schema):
    """Rate limit for requests to the API server, except watches with their lists, and requests for the Lease."""

    qps: float = Field(default=300.0, gt=0, le=10_000)
    """Requests per second."""
    burst: int = Field(default=500, ge=1, le=100_000)
    """Number of requests that may be sent at once after a pause."""


class TenantRole(Schema):
    """ClusterRole that the operator binds in the namespaces of tenants."""

    cluster_role: str = Field(min_length=1)
    """Name of the ClusterRole and of its RoleBindings."""
    account: str = Field(min_length=1)
    """ServiceAccount in the operator's namespace that gets the rights."""


class KueueSettings(Schema):
    """Settings for Kueue, which admits runs with a queueName."""

    priority_classes: list[str] = Field(default_factory=list)
    """WorkloadPriorityClasses that runs may name in the label kueue.x-k8s.io/priority-class. * matches any
    characters.
    """


class OperatorSettings(Schema):
    """Settings of the operator process."""

    images: Images = Field(default_factory=Images)
    image_pull_secrets: list[str] = Field(default_factory=list)
    """Names of Secrets in the run's namespace from which nodes get the credentials to pull images."""
    s3: S3Settings
    storage_server: str = Field(default="http://rlrun-server.rlrun-system.svc:8080", pattern=r"^https?://")
    """URL of rlrun-server, which signs the requests of runs to S3."""
    storage_server_certificate: ServerCertificate | None = None
    """Certificate of rlrun-server. If unset, rlrun-server uses http, or a certificate that the images trust."""
    api_keys: ApiKeySettings | None = None
    """API keys of rlrun-server. If unset, their Secret is not changed."""
    storage_server_authority: str = ""
    """PEM CA certificates that verify rlrun-server's certificate. The operator reads them from the Secret when it
    starts. If empty, the CAs that the images trust are used.
    """
    ca_bundle_file: Path | None = None
    """PEM file with CA certificates that all pods trust in addition to the public ones."""
    ca_bundle: str = ""
    """Certificates in `ca_bundle_file` that are not public, in PEM. The operator reads them when it starts."""
    proxy: ProxySettings = Field(default_factory=ProxySettings)
    """Proxy of trainers, engines, orchestrators and serving pools. Environments use the egress proxy instead."""
    compute_sizes: dict[ComputeSize, ComputeShape] = Field(default_factory=lambda: dict(DEFAULT_SIZES))
    orchestrator_resources: Resources = Field(default_factory=lambda: _resources("500m", "1Gi", "8Gi"))
    sidecar_resources: Resources = Field(default_factory=lambda: _resources("50m", "128Mi", "1Gi"))
    fetcher_resources: Resources = Field(default_factory=lambda: _resources("100m", "256Mi", "4Gi"))
    shm_size: Quantity = "2Gi"
    """Shared memory (/dev/shm) of trainer and inference pods; it counts toward their memory."""
    gpu_read_only_root_filesystem: bool = False
    """Makes the root filesystem of containers with GPUs read-only, as in all other containers."""
    ephemeral_storage: EphemeralStorage = Field(default_factory=EphemeralStorage)
    """Limits on ephemeral storage. Those of environments are in `computeSizes`."""
    security_context: PodSecurityContext = Field(default_factory=_default_security_context)
    """Security context of the pods of runs and serving pools."""
    orchestrator: PodShape = Field(default_factory=PodShape)
    """Shape of orchestrator pods."""
    termination_grace_period_seconds: GracePeriods = Field(default_factory=GracePeriods)
    """Grace periods of pods by role."""
    environments: EnvironmentPods = Field(default_factory=EnvironmentPods)
    """Shape and isolation of environment pods."""
    network_policies: bool = True
    """If true, the operator creates NetworkPolicies for runs."""
    dns: ClusterDns = Field(default_factory=ClusterDns)
    """DNS servers that NetworkPolicies allow environments to reach. If `modelEgress` is set, trainers and engines may
    reach them as well.
    """
    metrics_peers: list[dict[str, Any]] = Field(default_factory=list)
    """NetworkPolicy peers that may scrape the metrics of all pods of runs and serving pools."""
    model_egress: list[EgressRule] | None = None
    """Additional destinations that NetworkPolicies allow trainers and engines to reach: the S3 server and the sources
    of models. If unset, all destinations are allowed.
    """
    reserved_secret_names: list[str] = Field(default_factory=lambda: ["*-s3"])
    """Names of Secrets that spec.envFrom and RLModels must not refer to. * matches any characters. In the chart, the
    name of the Secret with the S3 credentials ends in -s3.
    """
    secret_label: str = Field(default="", pattern=r"^([A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?)?$")
    """Label that Secrets in spec.envFrom must have: `key` or `key=value`. If empty, no label is required."""
    priority_classes: list[str] = Field(default_factory=list)
    """PriorityClasses that runs may use. * matches any characters."""
    environment_owners: dict[str, list[str]] = Field(default_factory=dict)
    """Namespaces that may use the packages of each owner. * matches any characters. Packages of unlisted owners are
    public.
    """
    egress: EgressSettings | None = None
    """Egress proxy. If unset, environments cannot reach hosts outside the cluster."""
    kueue: KueueSettings | None = None
    """Settings for Kueue. If unset, runs with a queueName are refused."""
    private_addresses: list[str] = Field(default_factory=list)
    """Private addresses that runs may name: host names (* matches any characters), IP addresses and networks."""
    defaults: Defaults = Field(default_factory=Defaults)
    serving: ServingPoolSettings = Field(default_factory=ServingPoolSettings)
    """Settings of serving pools."""

    queue: QueueSettings = Field(default_factory=QueueSettings)
    """Queue that limits how many runs may have pods at a time."""

    poll_seconds: float = Field(default=2.0, gt=0, le=60)
    """Minimum seconds between two periodic reconciles of a run that starts, ends or has a problem, and between two
    updates of the progress of a training run.
    """
    resync_seconds: float = Field(default=120.0, ge=5, le=3600)
    """Seconds between two resyncs, which reconcile all runs that may need an action."""
    artifact_sweep_seconds: float = Field(default=900.0, ge=1, le=86400)
    """Seconds (± 20 %) between two S3 listings of an active run while no upload is due."""
    api: ApiSettings = Field(default_factory=ApiSettings)
    """Rate limit for requests to the API server."""
    workers: int = Field(default=8, ge=1, le=256)
    """Maximum number of runs reconciled concurrently."""
    s3_threads: int = Field(default=8, ge=1, le=64)
    """Maximum number of concurrent S3 calls."""
    artifact_deletion_seconds: float = Field(default=300.0, gt=0)
    """Time limit in seconds for deleting a run's files in S3 (artifactPolicy Delete)."""
    gc: GarbageSettings | None = None
    """Periodic garbage collection by the operator. If unset, garbage is collected only by `rlrun gc`."""
    watch_namespaces: list[str] = Field(default_factory=list)
    """Namespaces to watch. If empty, all namespaces."""
    namespace_label: str = Field(default="", pattern=r"^([^=]+=[^=]+)?$")
    """Label of tenant namespaces, as `key=value`. If empty, all namespaces are tenants. Ignored if `watch_namespaces`
    is set.
    """
    tenant_roles: list[TenantRole] = Field(default_factory=list)
    """Roles that the operator binds in each namespace with `namespace_label`. If empty, roles must be bound in another
    way.
    """
    ip_family: Literal["IPv4", "IPv6"] | None = None
    """IP family of the pods. Engines listen on addresses of this family. Defaults to that of the API server's Service,
    or IPv4 outside a cluster.
    """
    status_url_template: str = "http://{name}-orchestrator.{namespace}.svc:8080/status"
    """Template for the URL of a run's orchestrator, with {name} and {namespace} of the run."""
    serving_url_template: str = "http://{ip}:8001/adapters"
    """Template for the URL of a serving pool's sidecar, with {ip}, {name} and {namespace} of the pod."""
    kubeconfig: str | None = None
    """Path of a kubeconfig for an operator outside the cluster. Defaults to the pod's ServiceAccount."""
    lease_namespace: str = "rlrun-system"
    lease_name: str = "rlrun-operator"
    lease_seconds: float = Field(default=15.0, ge=10, le=60)
    """Seconds without a renewal of the Lease after which another operator takes over. The active operator stops
    earlier.
    """
    http_port: int = Field(default=8080, ge=0, le=65535)
    """Port of /healthz, /readyz and /metrics."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def tenant_labels(self) -> dict[str, str]:
        """Label of the namespaces of tenants, or an empty dictionary if tenants are not selected by label."""
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
        # Merge the sizes: settings for one size must not remove the defaults of the others.
        if isinstance(data, dict):
            for key in ("computeSizes", "compute_sizes"):
                if isinstance(data.get(key), dict):
                    own = {size: _with_default_limit(size, shape) for size, shape in data[key].items()}
                    data = {**data, key: {**{k.value: v for k, v in DEFAULT_SIZES.items()}, **own}}
        return data


VARIABLE = "RLRUN_SETTINGS"
DEFAULT_PATH = Path("/etc/rlrun/settings.yaml")


class SettingsError(Exception):
    """Raised if the operator's settings cannot be read or are invalid. The message is for administrators."""


def load_settings(environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Load the YAML or JSON file at the path in RLRUN_SETTINGS, by default DEFAULT_PATH. Raises SettingsError.

    If the file does not set `ipFamily`, the IP family of the API server's Service is used, or IPv4 outside a cluster.
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
        count = "1 invalid setting" if len(lines) == 1 else f"{len(lines)} invalid settings"
        raise SettingsError(f"{source} has {count}:\n" + "\n".join(lines)) from error
