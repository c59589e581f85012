"""Names and numbers that several programs use: API, labels, ports, exit codes, conditions, reasons.

They are part of the interface: changing a value breaks stored objects, active runs or clients.
"""

from enum import IntEnum, StrEnum
from typing import Literal

# --- API ------------------------------------------------------------------------------------------------------------

ApiVersion = Literal["rlrun.dev/v1alpha1"]

GROUP = "rlrun.dev"
VERSION = "v1alpha1"
API_VERSION: ApiVersion = "rlrun.dev/v1alpha1"

MINIMUM_DRIVER = 580
"""Minimum major version of the NVIDIA driver for CUDA 13, with which the trainer and the engine are built."""

MAX_RUN_NAME = 40
"""Maximum length of an RLRun's name. Names of children have up to 23 more characters and must not exceed 63."""

# --- environment packages -------------------------------------------------------------------------------------------

MAX_PACKAGE_BYTES = 512 * 1024**2
"""Maximum size of a package with all its wheels, in bytes."""
MAX_UNPACKED_BYTES = 4 * 1024**3
"""Maximum size of a package's unpacked files, in bytes."""
MAX_PACKAGE_FILES = 100_000
"""Maximum number of files in a package's wheels."""

# --- labels and annotations -----------------------------------------------------------------------------------------

RUN_LABEL = "rlrun.dev/run"
ROLE_LABEL = "rlrun.dev/role"
COMPONENT_LABEL = "rlrun.dev/component"
ATTEMPT_LABEL = "rlrun.dev/attempt"
RUN_UID_LABEL = "rlrun.dev/run-uid"
STEP_LABEL = "rlrun.dev/step"
SERVING_LABEL = "rlrun.dev/serving"
"""Label with the name of the serving pool or shared pool that an object belongs to."""
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""Label of every object that the operator creates for runs and serving pools, with the value FIELD_MANAGER."""

GENERATION_ANNOTATION = "rlrun.dev/generation"
"""Annotation of a child: `metadata.generation` of the RLRun when the child was built."""
CONFIG_ANNOTATION = "rlrun.dev/config"
"""Annotation of a pod: digest of the ConfigMap's new content. Writing it makes the kubelet update the mounted ConfigMap
immediately.
"""
MODEL_ANNOTATION = "rlrun.dev/model"
"""Annotation of a serving pool or shared pool: id of its base model, which can be too long for a label."""
IDLE_ANNOTATION = "rlrun.dev/idle-since"
"""Annotation on the ServiceAccount of a shared pool: time since which the pool has had no run."""
REFERENCES_ANNOTATION = "rlrun.dev/references"
"""Annotation on the ConfigMap of an attempt: signature over the attempt's base model and checkpoint, because users can
change the ConfigMap.
"""
HASH_ANNOTATION = "rlrun.dev/desired"
"""Annotation with the digest of the object, its spec or its pod template as built by the operator, without fields that
others add.
"""
TOKEN_ANNOTATION = "rlrun.dev/token"
"""Annotation of the pods of a serving pool or shared pool: digest of the token and keys in the pods' variables."""
WEIGHTS_LABEL = "rlrun.dev/weights"
"""Label with the name of a weights cache, on its claim and on the objects that fill it."""
EGRESS_ANNOTATION = "rlrun.dev/egress"
"""Annotation of a namespace: hosts, separated by commas, that its runs may list in env[].egress."""
REQUEST_ANNOTATION = "rlrun.dev/request-digest"
"""Annotation of an RLRun created over REST with an Idempotency-Key, or by a client's program: digest of the request."""
USER_ANNOTATION = "rlrun.dev/user"
"""Annotation of a run: the user who created it. The admission policy prevents forged values."""
CLIENT_SESSION_LABEL = "rlrun.dev/client-session"
"""Label of a run with `driver: Client`: session of the client's program (`client_run.SessionId.group`)."""
CLIENT_METADATA_ANNOTATION = "rlrun.dev/client-metadata"
"""Annotation of a run with `driver: Client`: metadata that the client's program provided, as JSON."""
EARLIER_STEPS_ANNOTATION = "rlrun.dev/earlier-steps"
"""Annotation of a run created through `prime`: number of steps in the paused runs that this run continues."""
SKIP_DELETION_ANNOTATION = "rlrun.dev/skip-artifact-deletion"
"""Annotation of an RLRun. If it is "true", deleting the run takes effect immediately and keeps its files in S3."""

FINALIZER = "rlrun.dev/artifacts"

FIELD_MANAGER = "rlrun-operator"
SERVING_FIELD_MANAGER = "rlrun-serving"
"""Field manager of the fields in an adapter's status that describe its deployment."""
CLI_FIELD_MANAGER = "rlrun-cli"
SERVER_FIELD_MANAGER = "rlrun-server"

# --- ports ----------------------------------------------------------------------------------------------------------

TRAINER_PORT = 8080
ENVIRONMENT_PORT = 8080
INFERENCE_PORT = 8000
SIDECAR_PORT = 8001
GATEWAY_PORT = 8000
ORCHESTRATOR_STATUS_PORT = 8080
"""Port of the orchestrator's Service for its status. GATEWAY_PORT is the Service's port for the rollout gateway."""
GATEWAY_CONTAINER_PORT = 8088
ORCHESTRATOR_STATUS_CONTAINER_PORT = 8089
"""Port of the orchestrator's container for its status; GATEWAY_CONTAINER_PORT is the port for the gateway. They differ
from the ports of trainer and engines, so that a NetworkPolicy rule for a port applies to only one kind of pod.
"""
LOG_HOLD_PORT = 8090
"""Port of the log hold of each pod of a run (`rlrun.service.containers.log_hold`)."""
EGRESS_PORT = 3128
EGRESS_METRICS_PORT = 8080
SERVER_PORT = 8080
"""Plain HTTP port of rlrun-server. If the server has a certificate, the port is open only on loopback."""
SERVER_TLS_PORT = 8443
SERVER_METRICS_PORT = 8081

# --- processes ------------------------------------------------------------------------------------------------------


# --- logs of terminating pods ------------------------------------------------------------------------------------

LOG_HOLD_CONTAINER = "log-hold"
"""Native sidecar that keeps a terminating pod of a run until the logs of its containers are in S3."""
LOG_HOLD_SECONDS = 20
"""Maximum duration of the log hold in seconds. It is part of the pod's grace period, and longer than the operator takes
to elect a new leader.
"""

# --- Certificate authorities of the platform in pods ----------------------------------------------------------------

CA_BUNDLE_CONTAINER = "ca-bundle"
"""Init container that writes the platform's and the public certificate authorities to a file
(`rlrun.service.trust_bundle`).
"""
CA_BUNDLE_VARIABLE = "RLRUN_CA_BUNDLE"
"""Environment variable that contains the platform's certificates in PEM."""
CA_BUNDLE_FILE_VARIABLE = "RLRUN_CA_BUNDLE_FILE"
"""Environment variable with the path of a file that contains the platform's certificates."""
CA_BUNDLE_DIR = "/etc/rlrun-ca"
CA_BUNDLE_PATH = f"{CA_BUNDLE_DIR}/ca-bundle.crt"
"""Path of the file that the init container writes and that clients trust."""
CA_CLIENT_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
"""Variables that are set to CA_BUNDLE_PATH. They are read, respectively, by OpenSSL, Go, Rust and httpx; by requests;
by botocore; by curl; and by Node.js.
"""


class Driver(StrEnum):
    """Program that runs the training loop of a run."""

    orchestrator = "Orchestrator"
    client = "Client"
    """A user's program that calls the Tinker-compatible API."""


class Role(StrEnum):
    """Roles of a run's processes, as in the label `rlrun.dev/role`."""

    trainer = "trainer"
    inference = "inference"
    environment = "environment"
    orchestrator = "orchestrator"


class ExitCode(IntEnum):
    """Exit codes of the platform's processes."""

    COMPLETED = 0
    RESTART = 1
    """A new attempt may succeed."""
    CONFIGURATION = 64
    """A new attempt would fail in the same way (EX_USAGE of sysexits)."""
    STOPPED = 143
    """Stopped by SIGTERM. If the exit code were 0, the kubelet would report an evicted pod as Succeeded, with no reason
    or message.
    """


# --- HTTP statuses of failed requests between processes -------------------------------------------------------------

SESSION_MISSING = 404
CONFLICT = 409
GONE = 410
UNPROCESSABLE = 422
FAILED_DEPENDENCY = 424
LATER = 503
OUT_OF_MEMORY = 507

# --- conditions -----------------------------------------------------------------------------------------------------


class ConditionType(StrEnum):
    """Condition types in the status of the project's objects."""

    VALIDATED = "Validated"
    POD_TEMPLATE_VALID = "PodTemplateValid"
    """Condition of RLModel: the API server accepts pods of the model."""
    ADMITTED = "Admitted"
    CHILDREN_APPLIED = "ChildrenApplied"
    WEIGHTS_CACHED = "WeightsCached"
    TRAINER_READY = "TrainerReady"
    INFERENCE_READY = "InferenceReady"
    ENVIRONMENTS_READY = "EnvironmentsReady"
    ORCHESTRATOR_READY = "OrchestratorReady"
    RUNNING = "Running"
    REWARD_FUNCTIONS_HEALTHY = "RewardFunctionsHealthy"
    TRAINING_HEALTHY = "TrainingHealthy"
    WARNINGS = "Warnings"
    ARTIFACTS_LISTED = "ArtifactsListed"
    ARTIFACTS_RECORDED = "ArtifactsRecorded"
    ARTIFACTS_CLEANED_UP = "ArtifactsCleanedUp"
    COMPLETED = "Completed"
    FAILED = "Failed"
    DELETED = "Deleted"
    """Condition of RLCheckpoint and RLAdapter: whether their files have been deleted."""
    VERIFIED = "Verified"
    """Condition of RLCheckpoint and RLAdapter: S3 still contains the artifact that became Ready."""


START_CONDITIONS = (
    ConditionType.VALIDATED,
    ConditionType.ADMITTED,
    ConditionType.CHILDREN_APPLIED,
    ConditionType.WEIGHTS_CACHED,
    ConditionType.TRAINER_READY,
    ConditionType.INFERENCE_READY,
    ConditionType.ENVIRONMENTS_READY,
    ConditionType.ORCHESTRATOR_READY,
)
"""Conditions of an RLRun in the order of its start. The first one that is not True explains why the run waits."""


class Reason(StrEnum):
    """Reasons in conditions, Events and error responses, as documented in docs/reference/conditions.md."""

    # Life of a run
    VALID = "Valid"
    NOT_STARTED = "NotStarted"
    STARTING = "Starting"
    READY = "Ready"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    CONFIGURATION_UNREADABLE = "ConfigurationUnreadable"
    SUSPENDED = "Suspended"
    STOPPED = "Stopped"
    FINISHING = "Finishing"
    RUN_FINISHED = "RunFinished"
    COMPLETED = "Completed"
    NOT_COMPLETED = "NotCompleted"
    FAILED = "Failed"
    NOT_FAILED = "NotFailed"
    PENDING = "Pending"
    WAITING_FOR_PREVIOUS_PODS = "WaitingForPreviousPods"
    DELETING_ARTIFACTS = "DeletingArtifacts"
    LISTED = "Listed"
    CLEANED_UP = "CleanedUp"
    APPLIED = "Applied"
    NOT_SEEN_YET = "NotSeenYet"

    # Queue
    ADMITTED = "Admitted"
    NOT_QUEUED = "NotQueued"
    NAMESPACE_LIMIT_REACHED = "NamespaceLimitReached"
    RUN_LIMIT_REACHED = "RunLimitReached"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    EXCEEDS_CAPACITY = "ExceedsCapacity"
    POOL_FULL = "PoolFull"
    # Queue of Kueue
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_ADMISSION_CHECKS = "WaitingForAdmissionChecks"
    QUEUE_MISCONFIGURED = "QueueMisconfigured"
    WORKLOAD_EVICTED = "WorkloadEvicted"
    PLACEMENT_CONFLICT = "PlacementConflict"
    KUEUE_UNAVAILABLE = "KueueUnavailable"

    # Spec and references
    INVALID_SPEC = "InvalidSpec"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_INVALID = "ModelInvalid"
    MAX_TOKENS_TOO_LARGE = "MaxTokensTooLarge"
    FULL_FINE_TUNING_NOT_ALLOWED = "FullFineTuningNotAllowed"
    LORA_RANK_TOO_HIGH = "LoraRankTooHigh"
    LORA_TARGETS_UNKNOWN = "LoraTargetsUnknown"
    CHECKPOINT_NOT_FOUND = "CheckpointNotFound"
    CHECKPOINT_NOT_READY = "CheckpointNotReady"
    CHECKPOINT_INCOMPLETE = "CheckpointIncomplete"
    CHECKPOINT_MODEL_MISMATCH = "CheckpointModelMismatch"
    SECRETS_MISSING = "SecretsMissing"
    WANDB_KEY_MISSING = "WandbKeyMissing"
    S3_CREDENTIALS_MISSING = "S3CredentialsMissing"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    SECRET_RESERVED = "SecretReserved"
    NAMESPACE_RESERVED = "NamespaceReserved"
    PRIORITY_CLASS_NOT_ALLOWED = "PriorityClassNotAllowed"
    ADDRESS_NOT_ALLOWED = "AddressNotAllowed"
    ENVIRONMENT_ARGS_TOO_LARGE = "EnvironmentArgsTooLarge"
    ARTIFACT_NOT_OWNED = "ArtifactNotOwned"
    ENVIRONMENT_NOT_ALLOWED = "EnvironmentNotAllowed"
    EGRESS_NOT_ALLOWED = "EgressNotAllowed"
    EGRESS_UNAVAILABLE = "EgressUnavailable"
    CREDENTIAL_IN_CLEAR_TEXT = "CredentialInClearText"

    # Objects that cannot be written or read
    QUOTA_EXCEEDED = "QuotaExceeded"
    OBJECT_REFUSED = "ObjectRefused"
    NAME_TAKEN = "NameTaken"
    OBJECTS_TOO_LARGE = "ObjectsTooLarge"
    NAMESPACE_NOT_TENANT = "NamespaceNotTenant"

    # Pods
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CREATE_CONTAINER_CONFIG_ERROR = "CreateContainerConfigError"
    CREATE_FAILED = "CreateFailed"
    UNSCHEDULABLE = "Unschedulable"
    NODE_UNREACHABLE = "NodeUnreachable"
    VOLUME_MOUNT_FAILED = "VolumeMountFailed"
    POD_SANDBOX_FAILED = "PodSandboxFailed"
    POD_REJECTED = "PodRejected"
    POD_EVICTED = "PodEvicted"
    CONTAINER_LOST = "ContainerLost"
    INJECTED_CONTAINER_FAILED = "InjectedContainerFailed"
    READINESS_GATE_CLOSED = "ReadinessGateClosed"
    TRAINER_OUT_OF_MEMORY = "TrainerOutOfMemory"
    INFERENCE_OUT_OF_MEMORY = "InferenceOutOfMemory"
    ENVIRONMENT_OUT_OF_MEMORY = "EnvironmentOutOfMemory"
    ORCHESTRATOR_OUT_OF_MEMORY = "OrchestratorOutOfMemory"
    TRAINER_OUT_OF_DISK = "TrainerOutOfDisk"
    INFERENCE_OUT_OF_DISK = "InferenceOutOfDisk"
    ENVIRONMENT_OUT_OF_DISK = "EnvironmentOutOfDisk"
    ORCHESTRATOR_OUT_OF_DISK = "OrchestratorOutOfDisk"
    TRAINER_CRASHED = "TrainerCrashed"
    INFERENCE_CRASHED = "InferenceCrashed"
    ENVIRONMENT_CRASHED = "EnvironmentCrashed"
    ORCHESTRATOR_CRASHED = "OrchestratorCrashed"
    ORCHESTRATOR_FAILED = "OrchestratorFailed"
    TOO_MANY_RESTARTS = "TooManyRestarts"

    # Deadlines
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
    STALL_DEADLINE_EXCEEDED = "StallDeadlineExceeded"
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded"

    # S3
    S3_UNREACHABLE = "S3Unreachable"
    S3_ACCESS_DENIED = "S3AccessDenied"
    S3_BUCKET_MISSING = "S3BucketMissing"
    S3_NOT_FOUND = "S3NotFound"
    S3_ARTIFACT_CORRUPT = "S3ArtifactCorrupt"
    ARTIFACT_CHANGED = "ArtifactChanged"
    S3_FULL = "S3Full"
    S3_TOO_MANY_OBJECTS = "S3TooManyObjects"
    S3_ERROR = "S3Error"
    S3_NOT_IMPLEMENTED = "S3NotImplemented"
    INSTALLATION_MISMATCH = "InstallationMismatch"
    STORAGE_SERVER_UNAVAILABLE = "StorageServerUnavailable"
    STORAGE_ACCESS_DENIED = "StorageAccessDenied"
    STORAGE_UNSAFE = "StorageUnsafe"
    API_KEY_ACCOUNT_MISSING = "ApiKeyAccountMissing"
    API_KEY_LIMIT_REACHED = "ApiKeyLimitReached"
    API_KEY_NOT_FOUND = "ApiKeyNotFound"

    # Base model
    INVALID_MODEL_SOURCE = "InvalidModelSource"
    MODEL_ACCESS_DENIED = "ModelAccessDenied"
    MODEL_HUB_UNREACHABLE = "ModelHubUnreachable"
    MODEL_FOLDER_NOT_WRITABLE = "ModelFolderNotWritable"
    DISK_FULL = "DiskFull"
    WEIGHTS_CACHED = "WeightsCached"
    WEIGHTS_DOWNLOADING = "WeightsDownloading"
    WEIGHTS_NOT_CACHED = "WeightsNotCached"

    # Waiting
    WAITING_FOR_TRAINER = "WaitingForTrainer"
    WAITING_FOR_INFERENCE = "WaitingForInference"
    WAITING_FOR_ENVIRONMENT = "WaitingForEnvironment"
    WAITING_FOR_ARTIFACTS = "WaitingForArtifacts"
    WAITING_FOR_EVALUATION = "WaitingForEvaluation"

    # Trainer
    TRAINER_LOADING = "TrainerLoading"
    TRAINER_STOPPING = "TrainerStopping"
    MODEL_MISSING = "ModelMissing"
    MODEL_LOAD_FAILED = "ModelLoadFailed"
    MODEL_UNSUPPORTED = "ModelUnsupported"
    SAMPLES_NOT_SEPARATED = "SamplesNotSeparated"
    PACKING_DISABLED = "PackingDisabled"
    MODEL_MISMATCH = "ModelMismatch"
    DEVICE_MISSING = "DeviceMissing"
    NO_FREE_SLOT = "NoFreeSlot"
    ADAPTER_INVALID = "AdapterInvalid"
    LORA_TARGETS_INCOMPLETE = "LoraTargetsIncomplete"
    ADAPTER_WITHOUT_GRADIENT = "AdapterWithoutGradient"
    SESSION_INVALID = "SessionInvalid"
    SESSION_CONFLICT = "SessionConflict"
    SESSION_MISSING = "SessionMissing"
    ORCHESTRATOR_SUPERSEDED = "OrchestratorSuperseded"
    SESSION_SPEC_INVALID = "SessionSpecInvalid"
    TRAIN_BATCH_INVALID = "TrainBatchInvalid"
    CHECKPOINT_REQUEST_INVALID = "CheckpointRequestInvalid"
    CHECKPOINT_MISMATCH = "CheckpointMismatch"
    STEP_CONFLICT = "StepConflict"
    STEP_RESULT_INVALID = "StepResultInvalid"
    STEP_NOT_FINITE = "StepNotFinite"
    BATCH_INVALID = "BatchInvalid"
    BATCH_TOO_LARGE = "BatchTooLarge"
    RUN_COMPLETE = "RunComplete"
    POLICY_MISSING = "PolicyMissing"
    TRAINER_DISK_FULL = "TrainerDiskFull"
    TRAINER_ERROR = "TrainerError"
    UPLOAD_FAILED = "UploadFailed"
    UPLOADS_BEHIND = "UploadsBehind"
    CHECKPOINT_SKIPPED = "CheckpointSkipped"
    CHECKPOINT_EXCEEDS_GRACE_PERIOD = "CheckpointExceedsGracePeriod"
    ADAPTER_SKIPPED = "AdapterSkipped"

    # Inference
    INFERENCE_FAILED = "InferenceFailed"
    INFERENCE_ANSWER_UNUSABLE = "InferenceAnswerUnusable"
    ENGINE_UNREACHABLE = "EngineUnreachable"
    ADAPTER_DOWNLOAD_FAILED = "AdapterDownloadFailed"
    ADAPTER_LOAD_REJECTED = "AdapterLoadRejected"
    ADAPTER_IGNORED = "AdapterIgnored"
    ADAPTER_UNLOAD_REJECTED = "AdapterUnloadRejected"
    WEIGHTS_LOAD_REJECTED = "WeightsLoadRejected"
    POLICY_KIND_WRONG = "PolicyKindWrong"
    ADAPTERS_FOLDER_NOT_WRITABLE = "AdaptersFolderNotWritable"

    # Environments
    ENVIRONMENT_STARTING = "EnvironmentStarting"
    ENVIRONMENT_PACKAGE_MISSING = "EnvironmentPackageMissing"
    ENVIRONMENT_CHANGED = "EnvironmentChanged"
    ENVIRONMENT_DIGEST_MISMATCH = "EnvironmentDigestMismatch"
    ENVIRONMENT_INSTALL_FAILED = "EnvironmentInstallFailed"
    ENVIRONMENT_LOAD_FAILED = "EnvironmentLoadFailed"
    ENVIRONMENT_TIMEOUT = "EnvironmentTimeout"
    ENVIRONMENT_BUSY = "EnvironmentBusy"
    ENVIRONMENT_WORKER_DIED = "EnvironmentWorkerDied"
    ENVIRONMENT_TOO_MANY_PROCESSES = "EnvironmentTooManyProcesses"
    ORCHESTRATOR_UNREACHABLE = "OrchestratorUnreachable"
    EXAMPLE_NOT_FOUND = "ExampleNotFound"
    NO_EXAMPLES = "NoExamples"
    DEMONSTRATIONS_MISSING = "DemonstrationsMissing"
    DEMONSTRATIONS_INVALID = "DemonstrationsInvalid"
    DEMONSTRATIONS_TOO_LONG = "DemonstrationsTooLong"
    CHAT_TEMPLATE_FAILED = "ChatTemplateFailed"
    CHAT_TEMPLATE_MISMATCH = "ChatTemplateMismatch"

    # Rollouts
    REWARD_FUNCTION_ERRORS = "RewardFunctionErrors"
    ROLLOUT_ERRORS = "RolloutErrors"
    NO_ERRORS = "NoErrors"
    REWARD_FUNCTION_ERROR = "RewardFunctionError"
    REWARD_NOT_FINITE = "RewardNotFinite"
    ROLLOUT_FAILED = "RolloutFailed"
    ROLLOUT_NOT_RECORDED = "RolloutNotRecorded"
    ROLLOUT_REPEATED = "RolloutRepeated"
    ROLLOUT_UNASKED = "RolloutUnasked"
    AGENTS_NOT_COMPARABLE = "AgentsNotComparable"
    PROMPT_TOO_LONG = "PromptTooLong"
    REQUEST_REFUSED = "RequestRefused"
    GROUP_FAILED = "GroupFailed"
    EMPTY_BATCHES = "EmptyBatches"

    # Gateway
    TOKEN_INVALID = "TokenInvalid"
    GROUP_UNKNOWN = "GroupUnknown"
    TOO_MANY_REQUESTS = "TooManyRequests"
    TOO_MANY_ROLLOUTS = "TooManyRollouts"
    TOO_MANY_TURNS = "TooManyTurns"
    BODY_TOO_LARGE = "BodyTooLarge"
    BODY_TOO_SLOW = "BodyTooSlow"

    # Evaluation, teacher, metrics
    BASE_MODEL_NOT_MEASURED = "BaseModelNotMeasured"
    EVALUATION_ERRORS = "EvaluationErrors"
    EVALUATION_FAILED = "EvaluationFailed"
    EVALUATION_SKIPPED = "EvaluationSkipped"
    EVALUATION_TIMEOUT = "EvaluationTimeout"
    TEACHER_UNREACHABLE = "TeacherUnreachable"
    TEACHER_REFUSED = "TeacherRefused"
    TEACHER_ANSWER_UNUSABLE = "TeacherAnswerUnusable"
    WANDB_FAILED = "WandbFailed"
    METRIC_NAMES_DROPPED = "MetricNamesDropped"
    NO_WARNINGS = "NoWarnings"

    # Training
    NOTHING_UNUSUAL = "NothingUnusual"
    REWARD_FLAT_AT_ZERO = "RewardFlatAtZero"
    REWARD_FLAT_AT_ONE = "RewardFlatAtOne"
    NO_REWARD_DIVERSITY = "NoRewardDiversity"
    MOST_GROUPS_FILTERED = "MostGroupsFiltered"
    REWARD_COLLAPSED = "RewardCollapsed"
    POLICY_MISMATCH = "PolicyMismatch"
    TOKENS_MASKED = "TokensMasked"
    ENTROPY_COLLAPSED = "EntropyCollapsed"
    THROUGHPUT_STALLED = "ThroughputStalled"
    LONG_ROLLOUTS_LOST = "LongRolloutsLost"
    ROLLOUT_BOUND = "RolloutBound"
    TRAINER_BOUND = "TrainerBound"

    # Shared pools
    POOL_STARTING = "PoolStarting"
    POOL_REPLACED = "PoolReplaced"
    POOL_RESTARTING = "PoolRestarting"
    POOL_EVICTED = "PoolEvicted"

    # Runs of clients' programs
    CLIENT_NEEDS_POOL = "ClientNeedsPool"
    CLIENT_SILENT = "ClientSilent"
    CLIENT_MODEL_CONFLICT = "ClientModelConflict"
    COMMAND_CONFLICT = "CommandConflict"
    COMMAND_INVALID = "CommandInvalid"
    COMMAND_UNKNOWN = "CommandUnknown"
    RESULT_GONE = "ResultGone"
    TOO_MANY_COMMANDS = "TooManyCommands"

    # Adapter deployment
    ADAPTER_NOT_READY = "AdapterNotReady"
    POOL_NOT_READY = "PoolNotReady"
    POOL_REFUSED = "PoolRefused"
    ADAPTERS_LOADING = "AdaptersLoading"
    NOT_AN_ADAPTER = "NotAnAdapter"
    ADAPTER_RANK_TOO_HIGH = "AdapterRankTooHigh"
    DEPLOY_FAILED = "DeployFailed"
    UNLOAD_FAILED = "UnloadFailed"
    ADAPTER_DEPLOYED = "AdapterDeployed"
    ADAPTER_UNDEPLOYED = "AdapterUndeployed"

    # Events
    ATTEMPT_STARTED = "AttemptStarted"
    CHECKPOINT_READY = "CheckpointReady"
    RUN_RESTARTING = "RunRestarting"
    ORCHESTRATOR_REPLACED = "OrchestratorReplaced"
    LOST_POD_DELETED = "LostPodDeleted"
    OUTLIVED_POD_DELETED = "OutlivedPodDeleted"
    ARTIFACTS_NOT_DELETED = "ArtifactsNotDeleted"

    # REST API
    NAMESPACE_NOT_FOUND = "NamespaceNotFound"
    OBJECT_NOT_FOUND = "ObjectNotFound"
    ACCESS_FORBIDDEN = "AccessForbidden"
    API_KEY_NOT_ALLOWED = "ApiKeyNotAllowed"
    CURSOR_MISMATCH = "CursorMismatch"
    MEDIA_TYPE_UNSUPPORTED = "MediaTypeUnsupported"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    IDEMPOTENCY_KEY_REUSED = "IdempotencyKeyReused"
    OBJECT_CHANGED = "ObjectChanged"
    SERVER_NOT_READY = "ServerNotReady"
    API_SERVER_UNAVAILABLE = "ApiServerUnavailable"
    METRICS_TOO_LARGE = "MetricsTooLarge"
    CROSS_SITE_REQUEST = "CrossSiteRequest"
    CONNECTION_NOT_ENCRYPTED = "ConnectionNotEncrypted"
    LOGIN_CODE_INVALID = "LoginCodeInvalid"
    OIDC_LOGIN_REFUSED = "OidcLoginRefused"
    OIDC_ISSUER_UNAVAILABLE = "OidcIssuerUnavailable"
    LOGS_NOT_AVAILABLE = "LogsNotAvailable"

    # Requests between processes
    UNREACHABLE = "Unreachable"
    ANSWER_INVALID = "AnswerInvalid"
    ANSWER_TOO_LARGE = "AnswerTooLarge"
    INVALID_REQUEST = "InvalidRequest"
    INTERNAL_ERROR = "InternalError"


class TrainingIssue(StrEnum):
    """Reasons why `TrainingHealthy` is False: all processes work, but training makes no progress."""

    reward_flat_at_zero = Reason.REWARD_FLAT_AT_ZERO
    reward_flat_at_one = Reason.REWARD_FLAT_AT_ONE
    no_reward_diversity = Reason.NO_REWARD_DIVERSITY
    most_groups_filtered = Reason.MOST_GROUPS_FILTERED
    reward_collapsed = Reason.REWARD_COLLAPSED
    policy_mismatch = Reason.POLICY_MISMATCH
    tokens_masked = Reason.TOKENS_MASKED
    entropy_collapsed = Reason.ENTROPY_COLLAPSED
    throughput_stalled = Reason.THROUGHPUT_STALLED
    long_rollouts_lost = Reason.LONG_ROLLOUTS_LOST


class Hint(StrEnum):
    """Reasons that `TrainingHealthy` can have while it is True: hints for increasing throughput."""

    rollout_bound = Reason.ROLLOUT_BOUND
    trainer_bound = Reason.TRAINER_BOUND


Use = Literal["train", "eval"]
