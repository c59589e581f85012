"""Catalog of reasons: meaning and action of each. docs/reference/conditions.md is generated from it."""

from dataclasses import dataclass

from rlrun.constants import ConditionType, Reason

NOTHING = "Nothing."


@dataclass(frozen=True)
class Entry:
    """Meaning of one reason, and what to do about it."""

    reason: Reason
    meaning: str
    action: str


@dataclass(frozen=True)
class ReasonSection:
    """Group of related reasons."""

    title: str
    text: str
    entries: tuple[Entry, ...]

    @property
    def anchor(self) -> str:
        """Anchor of the heading in the page."""
        return self.title.lower().replace(",", "").replace(" ", "-")


@dataclass(frozen=True)
class ConditionDescription:
    """Condition type and its possible reasons."""

    type: ConditionType
    kind: str
    meaning: str
    """Meaning of the condition when it is True."""
    when_true: tuple[Reason | ReasonSection | ConditionType, ...]
    when_false: tuple[Reason | ReasonSection | ConditionType, ...]
    """Reasons when False. A condition type stands for its own reasons when True."""


def _section(title: str, text: str, *rows: tuple[Reason, str, str]) -> ReasonSection:
    return ReasonSection(title, text, tuple(Entry(*row) for row in rows))


LIFE = _section(
    "Life of a run",
    "",
    (Reason.VALID, "The spec is valid, and everything that it refers to exists.", NOTHING),
    (Reason.NOT_STARTED, "No pod is created yet, because the run waits for something else.", "See `Validated`."),
    (
        Reason.STARTING,
        "Pods are created and not all of them are ready, or the first step of the attempt has not begun.",
        "Wait. Models and environment packages are being downloaded; `startDeadlineSeconds` limits the time.",
    ),
    (Reason.READY, "All pods of the role are ready.", NOTHING),
    (Reason.RUNNING, "The first step of the attempt has begun.", NOTHING),
    (Reason.PENDING, "Event: the run waits for its first step.", "See the conditions of the run."),
    (
        Reason.WAITING_FOR_PREVIOUS_PODS,
        "Pods of an earlier attempt, or of an earlier run of the same name, are terminating.",
        "Wait. If it takes long, look for pods on nodes that do not respond.",
    ),
    (
        Reason.RESTARTING,
        "An attempt failed, and the next one begins after a pause. The message says when and after which failure.",
        "Wait, or correct the cause that the message names. `failurePolicy` decides what follows a failure.",
    ),
    (
        Reason.CONFIGURATION_UNREADABLE,
        "The ConfigMap with the attempt's configuration was changed, or another version of the operator wrote it.",
        "No action needed: the next attempt gets a new one. Do not edit the ConfigMap.",
    ),
    (
        Reason.SUSPENDED,
        "`spec.suspend` is true: the run has no pods.",
        "Set `spec.suspend` to false to continue from the newest checkpoint.",
    ),
    (
        Reason.STOPPED,
        "`spec.stop` is true: the run has ended, and its artifacts are kept.",
        "To continue, start a new run with `checkpointId`.",
    ),
    (
        Reason.FINISHING,
        "The orchestrator has ended or the run is suspended, and its last artifacts are not listed in S3 yet.",
        "Wait. After 120 s the run ends without them; a suspended one waits for its pods and for S3.",
    ),
    (Reason.RUN_FINISHED, "The run has ended, and its pods are removed.", NOTHING),
    (Reason.COMPLETED, "All steps are completed.", "Download the adapter: `rlrun adapters`."),
    (Reason.NOT_COMPLETED, "The run has not completed.", NOTHING),
    (Reason.FAILED, "The run failed, and no other reason is known.", "See the conditions and the logs of the run."),
    (Reason.NOT_FAILED, "The run has not failed.", NOTHING),
    (Reason.LISTED, "The operator has read the run's artifacts from S3.", NOTHING),
    (Reason.CLEANED_UP, "Retention deletes old artifacts again after an interval in which it could not.", NOTHING),
    (
        Reason.DELETING_ARTIFACTS,
        "The run is being deleted, and its files in S3 with it (`artifactPolicy: Delete`).",
        "Wait, or set the annotation `rlrun.dev/skip-artifact-deletion=true` to delete the run without its files.",
    ),
    (
        Reason.NOT_SEEN_YET,
        "Command line only: the run has no status yet.",
        "Wait. If it stays, check that the operator runs and watches the namespace.",
    ),
)

QUEUE = _section(
    "Queue",
    "The run waits for its place without a limit of time; `startDeadlineSeconds` counts from the admission. "
    "`ExceedsCapacity` is different: the run fails when the deadline has passed.",
    (Reason.ADMITTED, "The run has its place, and may have pods.", NOTHING),
    (Reason.NOT_QUEUED, "The run neither waits for a place nor has one.", NOTHING),
    (
        Reason.NAMESPACE_LIMIT_REACHED,
        "The runs of the namespace with a place are as many, or request as much, as the platform allows it.",
        "Wait, or suspend or stop another run of the namespace. `status.queue.runsAhead` tells how many come before.",
    ),
    (
        Reason.RUN_LIMIT_REACHED,
        "As many runs have a place as the platform allows in all, or the next place is for a run that comes before.",
        "Wait. `status.queue.runsAhead` tells how many runs come before.",
    ),
    (
        Reason.WAITING_FOR_CAPACITY,
        "The resources that the run needs are in use, or are kept for a run that comes before.",
        "Wait. `status.queue` has the resources and the number of runs that come before.",
    ),
    (
        Reason.EXCEEDS_CAPACITY,
        "The run needs more of a resource than the platform has in all (`queue.capacity`), so it can never start.",
        "Choose a smaller RLModel or fewer environments in a new run, or ask the platform team to raise the capacity "
        "or to make the RLModel smaller.",
    ),
)

KUEUE = _section(
    "Queues of Kueue",
    "Runs with `queueName`. The run waits without a limit of time; with `KueueUnavailable` until "
    "`startDeadlineSeconds` has passed.",
    (
        Reason.WAITING_FOR_QUOTA,
        "Kueue has not admitted the run yet. The message has Kueue's own reason.",
        "Wait. `kubectl describe workload` in the run's namespace shows the run's Workload.",
    ),
    (
        Reason.WAITING_FOR_ADMISSION_CHECKS,
        "Kueue has reserved quota, and admission checks are pending. The message names them.",
        "Wait, or ask the platform team about the checks.",
    ),
    (
        Reason.QUEUE_MISCONFIGURED,
        "Kueue cannot admit the run: the LocalQueue or its ClusterQueue is missing or inactive, the class of priority "
        "does not exist, or the run's Workload is deactivated.",
        "Ask the platform team to correct what the message names, or start the run with another `queueName`.",
    ),
    (
        Reason.WORKLOAD_EVICTED,
        "Kueue took the run's quota back, for example for a run of higher priority, or because the queue was stopped. "
        "The message has Kueue's reason.",
        "No action needed: the run queues again, and continues from its newest checkpoint. It does not count toward "
        "`maxRestarts`.",
    ),
    (
        Reason.PLACEMENT_CONFLICT,
        "The run was admitted, but a pod would need two values of one label of nodes: that of the RLModel and that of "
        "the queue's ResourceFlavor differ. The run fails.",
        "Correct the RLModel's `nodeSelector` or the flavors of the queue, and start the run again.",
    ),
    (
        Reason.KUEUE_UNAVAILABLE,
        "The platform does not use Kueue (`kueue.enabled` of the chart), its kinds are not installed, or the operator "
        "must not read them. A run that was admitted before goes on.",
        "Start the run without `queueName`, or ask the platform team to do what the message says.",
    ),
)

REFERENCES = _section(
    "Spec and references",
    "The run waits until the cause is removed or `startDeadlineSeconds` has passed.",
    (
        Reason.INVALID_SPEC,
        "The spec is not valid for this version of the operator. The message names the fields.",
        "Correct these fields and apply the run again.",
    ),
    (
        Reason.MODEL_NOT_FOUND,
        "No RLModel has the id in `spec.model`, or there is no complete model at the source of the RLModel.",
        "Choose one of `rlrun models`, or correct `spec.source` of the RLModel.",
    ),
    (Reason.MODEL_INVALID, "The RLModel is not valid for this version of the operator.", "Correct the RLModel."),
    (
        Reason.MAX_TOKENS_TOO_LARGE,
        "`sampling.maxTokens` leaves no tokens for a prompt within the model's `seqLen`.",
        "Set `sampling.maxTokens` below the `seqLen` of the RLModel.",
    ),
    (
        Reason.FULL_FINE_TUNING_NOT_ALLOWED,
        "`lora.enabled` is false, and the RLModel allows adapters only.",
        "Remove `lora.enabled`, or set `trainer.fullFineTuning` in the RLModel.",
    ),
    (
        Reason.LORA_RANK_TOO_HIGH,
        "`lora.rank` is higher than the rank that the RLModel's engines serve.",
        "Lower `lora.rank`, or raise it in the RLModel.",
    ),
    (
        Reason.LORA_TARGETS_UNKNOWN,
        "`lora.targetModules` names modules that the RLModel does not list.",
        "Choose among those that the message lists.",
    ),
    (
        Reason.CHECKPOINT_NOT_FOUND,
        "The RLCheckpoint of `checkpointId` does not exist, or is in another namespace and not shared with this one.",
        "Choose one that `rlrun checkpoints` lists, or ask the owner to add this namespace to `spec.sharedWith`.",
    ),
    (
        Reason.CHECKPOINT_NOT_READY,
        "The RLCheckpoint of `checkpointId` is not Ready, or is not a valid object.",
        "Wait for its upload, or choose another checkpoint.",
    ),
    (
        Reason.CHECKPOINT_INCOMPLETE,
        "The checkpoint's files in S3 are not complete.",
        "Choose another checkpoint.",
    ),
    (
        Reason.CHECKPOINT_MODEL_MISMATCH,
        "The checkpoint was trained from another model.",
        "Choose a checkpoint of the model in `spec.model`.",
    ),
    (
        Reason.ENVIRONMENT_NOT_ALLOWED,
        "An environment package belongs to an owner whose packages other namespaces may use, and this one may not.",
        "Use another package, or ask the platform team to allow the namespace (`runs.environmentOwners` of the chart).",
    ),
    (
        Reason.EGRESS_NOT_ALLOWED,
        "An environment lists a host in `egress` that the platform does not allow, or connects to one that it does not "
        "list.",
        "Remove the host, list it in `egress`, or ask the platform team to allow it (`egress.allowed` of the chart, or "
        "the annotation `rlrun.dev/egress` of the namespace).",
    ),
    (
        Reason.EGRESS_UNAVAILABLE,
        "An environment lists hosts in `egress`, and the operator cannot sign its permission.",
        "The platform team creates the Secret that the message names.",
    ),
    (
        Reason.ARTIFACT_NOT_OWNED,
        "The URI of the RLCheckpoint or RLAdapter is not in the folder of its run: the object was made by hand, or the "
        "bucket or prefix of the platform has changed.",
        "Use the objects that the operator creates: `rlrun checkpoints`, `rlrun adapters`.",
    ),
    (
        Reason.SECRET_RESERVED,
        "`envFrom` or the RLModel names a Secret that pods must not read, such as the platform's S3 credentials. A "
        "Secret of `envFrom` must be of type Opaque, and have the label in `runs.secretLabel` of the chart, if any.",
        "Put the variables into an Opaque Secret of your own and name that one, in a new run or in the RLModel.",
    ),
    (
        Reason.NAMESPACE_RESERVED,
        "The namespace has the name of a folder that all tenants share in S3, such as `environments` or `models`.",
        "Start the run in a namespace of another name.",
    ),
    (
        Reason.PRIORITY_CLASS_NOT_ALLOWED,
        "The platform does not allow runs to use the PriorityClass in `priorityClassName`.",
        "Choose one that the message lists, or ask the platform team to allow it.",
    ),
    (
        Reason.ADDRESS_NOT_ALLOWED,
        "A URL of the run (`algorithm.teacher.url`) leads to an address that the platform does not allow for runs: one "
        "inside the cluster or a private network, or one of the node or the cloud itself.",
        "Use an address on the internet in a new run, or ask the platform team to allow this one.",
    ),
    (
        Reason.ENVIRONMENT_ARGS_TOO_LARGE,
        "`args`, `taskset` and `harness` of an environment have together more than 127 KiB as JSON.",
        "Put large data into the environment's package, and start a new run.",
    ),
    (
        Reason.SECRETS_MISSING,
        "A Secret of `envFrom`, or a Secret or key that the RLModel names, does not exist, or an environment needs "
        "variables that no Secret contains.",
        "Create the Secret, or add the variables to it. The message names them.",
    ),
    (
        Reason.WANDB_KEY_MISSING,
        "`wandb` is set, and no Secret of `envFrom` has an entry `WANDB_API_KEY`.",
        "Add the entry to a Secret that `envFrom` lists, or start a new run with such a Secret, for example with "
        "`rlrun run FILE -e WANDB_API_KEY`. `wandb.offline` needs no key.",
    ),
    (
        Reason.S3_CREDENTIALS_MISSING,
        "The platform's S3 Secret does not exist or lacks a key.",
        "An administrator creates it. The message names the Secret and the key.",
    ),
    (
        Reason.INVALID_CONFIGURATION,
        "A process of the run cannot use its configuration. Restarting would not help.",
        "Correct the setting that the message names. If it is not one of yours, operator and images differ in version.",
    ),
)

MODELS = _section(
    "Model catalog",
    "Reported in the conditions of an RLModel.",
    (
        Reason.CREDENTIAL_IN_CLEAR_TEXT,
        "A variable of the RLModel has the name of a credential and a `value`, which all users may read.",
        "Put the value into a Secret, name it with `valueFrom.secretKeyRef`, and replace the credential.",
    ),
)

OBJECTS = _section(
    "Objects of a run",
    "The operator tries again, after at most 30 s. A run that has not started fails with the reason when "
    "`startDeadlineSeconds` has passed. While a checkpoint or adapter is refused, no file in S3 is deleted.",
    (Reason.APPLIED, "The API server accepts the objects of the run again.", NOTHING),
    (
        Reason.QUOTA_EXCEEDED,
        "A ResourceQuota of the namespace does not allow another object or pod of the run. See its message.",
        "Ask the platform team for a larger quota, or delete runs that are not needed.",
    ),
    (
        Reason.OBJECT_REFUSED,
        "The API server refused an object or pod of the run: an admission webhook or policy, a missing right of the "
        "operator, or an invalid field.",
        "Remove the cause that the message names, or show it to the platform team.",
    ),
    (
        Reason.NAME_TAKEN,
        "An object of another owner has a name that the run needs. The operator does not change it.",
        "Start the run under another name, or delete that object if it is not needed.",
    ),
    (
        Reason.OBJECTS_TOO_LARGE,
        "The objects of one kind with the run's label have more than 4 MiB a page (500 objects) or 32 MiB in all, so "
        "that the operator does not read them and decides nothing about the run. Its pods go on; deadlines, stop, "
        "suspension and deletion wait. The operator tries again after at most a minute.",
        "Delete the objects that the message names and that the operator has not made.",
    ),
    (
        Reason.NAMESPACE_NOT_TENANT,
        "The namespace lacks the label of tenants (`operator.namespaceLabel` of the chart), so that the operator has "
        "no rights in it. It creates nothing, and pods that exist go on without it: deadlines, stop, suspension and "
        "restarts wait.",
        "Ask an administrator of the cluster for the label: the message has the command. The run goes on seconds "
        "later.",
    ),
)

PODS = _section(
    "Pods",
    "",
    (
        Reason.IMAGE_PULL_FAILED,
        "The image of a container cannot be pulled, read or verified.",
        "Do what the message says: correct the image in the RLModel or the chart's values, give the nodes access to "
        "its registry, or sign it.",
    ),
    (
        Reason.CREATE_CONTAINER_CONFIG_ERROR,
        "A container refers to a Secret, ConfigMap or key that does not exist.",
        "Create it, or correct the reference.",
    ),
    (
        Reason.CREATE_FAILED,
        "The container runtime could not create or start a container. The message gives its error.",
        "Correct the cause that the error names, often a command, a volume or the node.",
    ),
    (
        Reason.UNSCHEDULABLE,
        "No node can run a pod. The message has the scheduler's reasons: resources, taints, labels, claims, cordons.",
        "Do what the message says: free or add nodes, add a toleration to the RLModel, create the claim, or lower the "
        "requests.",
    ),
    (
        Reason.NODE_UNREACHABLE,
        "The node of a pod, which the message names, does not report to Kubernetes. Its pods are replaced once they "
        "are evicted, by default after 5 minutes.",
        "Repair the node, or remove it with `kubectl delete node`, which replaces its pods at once.",
    ),
    (
        Reason.VOLUME_MOUNT_FAILED,
        "A pod has a node, and a volume of it cannot be attached or mounted. The message is from its newest Event.",
        "Create the Secret, ConfigMap or claim that the message names, or repair the node's storage driver.",
    ),
    (
        Reason.POD_SANDBOX_FAILED,
        "A pod has a node, and its network or its sandbox cannot be created. The message is from its newest Event.",
        "Repair the network plugin or the container runtime of the node, or install its runtime class.",
    ),
    (
        Reason.POD_REJECTED,
        "The node of a pod did not admit it, for example because its GPUs are unhealthy or taken. Another pod is "
        "created.",
        "Wait. If it repeats, do what the message says.",
    ),
    (
        Reason.POD_EVICTED,
        "Kubernetes ended a pod: its node lacked memory or disk, needed the room, or was shut down. Another pod is "
        "created. It does not count as a crash; if it repeats, the whole run restarts after a pause.",
        "Wait. If it repeats, request as much memory and storage as the pod uses: `rlrun models add` computes it.",
    ),
    (
        Reason.CONTAINER_LOST,
        "A container was gone after a restart of its node or of the container runtime. It does not count as a crash.",
        "Wait: the container is started again.",
    ),
    (
        Reason.INJECTED_CONTAINER_FAILED,
        "A container that another program or `podTemplate` has put into a pod of the run fails, for example the proxy "
        "of a mesh. The pod is not ready without it. It does not count as a crash.",
        "Repair it, or keep it out: a mesh heeds `meshInjection: Refused` of the role.",
    ),
    (
        Reason.READINESS_GATE_CLOSED,
        "The containers of a pod are ready, and a readiness gate that another program has put into it is not.",
        "Repair that program, or keep it from changing the pods of runs.",
    ),
    (
        Reason.TRAINER_OUT_OF_MEMORY,
        "The trainer exceeded the memory limit of its container, or a step did not fit into its memory.",
        "Lower `trainer.microBatchTokens` or `seqLen` in the RLModel, or give the trainer more memory.",
    ),
    (
        Reason.INFERENCE_OUT_OF_MEMORY,
        "A container of an inference pod exceeded its memory limit: the engine, the sidecar or the model fetcher.",
        "Raise the setting that the message names: the engine's is in the RLModel, the others in the chart's values.",
    ),
    (
        Reason.ENVIRONMENT_OUT_OF_MEMORY,
        "An environment container exceeded its memory limit.",
        "Use a larger `infrastructure.computeSize`.",
    ),
    (
        Reason.ORCHESTRATOR_OUT_OF_MEMORY,
        "The orchestrator exceeded its memory limit.",
        "Raise the orchestrator's resources in the chart's values.",
    ),
    *(
        (reason, f"The kubelet evicted {pod} that exceeded its limit of ephemeral storage.", action)
        for reason, pod, action in (
            (
                Reason.TRAINER_OUT_OF_DISK,
                "a pod of the trainer",
                "Raise `trainer.resources.limits.ephemeral-storage` in the RLModel.",
            ),
            (
                Reason.INFERENCE_OUT_OF_DISK,
                "an inference pod",
                "Raise `inference.resources.limits.ephemeral-storage` in the RLModel.",
            ),
            (
                Reason.ENVIRONMENT_OUT_OF_DISK,
                "an environment pod",
                "Keep fewer temporary files, or use a larger `infrastructure.computeSize`.",
            ),
            (
                Reason.ORCHESTRATOR_OUT_OF_DISK,
                "the orchestrator's pod",
                "Raise `runs.ephemeralStorage.orchestrator` in the chart's values.",
            ),
        )
    ),
    *(
        (reason, f"{container} exited with an error and left no message.", "Read the log that the message names.")
        for reason, container in (
            (Reason.TRAINER_CRASHED, "A container of the trainer"),
            (Reason.INFERENCE_CRASHED, "A container of an inference pod"),
            (Reason.ENVIRONMENT_CRASHED, "A container of an environment pod"),
            (Reason.ORCHESTRATOR_CRASHED, "A container of the orchestrator's pod"),
        )
    ),
    (
        Reason.ORCHESTRATOR_FAILED,
        "The orchestrator's Job failed, and its pods left no message.",
        "Read the log of the orchestrator: `rlrun logs --role orchestrator`.",
    ),
    (
        Reason.TOO_MANY_RESTARTS,
        "A component crashed more often than `maxRestarts` allows.",
        "Read its log: `rlrun logs`. Raise `maxRestarts` if the cause is outside the run.",
    ),
)

DEADLINES = _section(
    "Deadlines",
    "",
    (
        Reason.START_DEADLINE_EXCEEDED,
        "The first step did not begin within `startDeadlineSeconds`.",
        "See the conditions and the pods' logs, or raise `startDeadlineSeconds`.",
    ),
    (
        Reason.STALL_DEADLINE_EXCEEDED,
        "No step finished within `stallDeadlineSeconds`.",
        "See in the message what the run waited for, or raise `stallDeadlineSeconds`.",
    ),
    (
        Reason.ACTIVE_DEADLINE_EXCEEDED,
        "The run was active for `activeDeadlineSeconds`. Its checkpoints are kept.",
        "Start a new run with `checkpointId`.",
    ),
)

S3 = _section(
    "S3",
    "",
    (
        Reason.S3_UNREACHABLE,
        "The S3 endpoint does not respond, or responds with server errors.",
        "Check the endpoint, its DNS name and network policies. Requests are repeated.",
    ),
    (
        Reason.S3_ACCESS_DENIED,
        "S3 refuses the access: the credentials are missing, rejected or expired, or lack a permission, the region is "
        "another one, or a clock is wrong. The request is repeated for some minutes before the run fails.",
        "See S3's code and the advice in the message.",
    ),
    (Reason.S3_BUCKET_MISSING, "The bucket does not exist.", "Create it, or correct the S3 settings of the chart."),
    (
        Reason.S3_NOT_FOUND,
        "An object or a complete artifact does not exist in S3.",
        "Check the URI, and whether retention has deleted it.",
    ),
    (
        Reason.S3_ARTIFACT_CORRUPT,
        "The files of an artifact do not match its manifest.",
        "Use another checkpoint or adapter. A run that resumes tries an older checkpoint automatically.",
    ),
    (
        Reason.ARTIFACT_CHANGED,
        "The manifest of a checkpoint or adapter is not the one that it had when it became Ready: the SHA-256 differs "
        "from `status.digest`. Someone has written other files there. Nothing uses them.",
        "Use another artifact, and find out who wrote to the folder that the message names: its run's trainer, or who "
        "has a key of the bucket. If the files were replaced on purpose, delete the object: the operator makes it "
        "again with the new digest, not shared and not deployed.",
    ),
    (
        Reason.S3_FULL,
        "S3 accepts no more data: a quota or its disks are used up.",
        "Raise the quota, or free space. Requests are repeated, and running steps continue.",
    ),
    (Reason.S3_ERROR, "S3 rejected a request for another reason.", "See S3's answer in the message."),
    (
        Reason.STORAGE_SERVER_UNAVAILABLE,
        "rlrun-server, which signs the requests of runs to S3, does not respond.",
        "Check its Deployment and network policies. Requests are repeated, and running steps continue.",
    ),
    (
        Reason.STORAGE_ACCESS_DENIED,
        "rlrun-server does not sign a request to S3, because the process may not use that folder.",
        "See the message. If a run needs the folder, its grant is outdated: start a new attempt.",
    ),
    (
        Reason.S3_NOT_IMPLEMENTED,
        "The S3 server does not implement a request that the platform needs, for example one with `If-None-Match`.",
        "Use an S3 server that has it: docs/security.md lists which were tried.",
    ),
    (
        Reason.INSTALLATION_MISMATCH,
        "The mark in the bucket names another cluster, or there is none, so this cluster deletes no files.",
        'Use another `s3.prefix` if the other cluster exists; if this one takes its place, follow "Back up and '
        'restore" of docs/guides/operate.md, and adopt the bucket with `rlrun gc --adopt`.',
    ),
    (
        Reason.STORAGE_UNSAFE,
        "The S3 server accepts headers that a signature does not cover, so that a tenant could use it for other files. "
        "rlrun-server signs nothing for runs and users.",
        "The platform team upgrades or replaces the S3 server (docs/security.md lists which were tried). rlrun-server "
        "tests it again every 30 seconds.",
    ),
    (
        Reason.API_KEY_ACCOUNT_MISSING,
        "The namespace has no ServiceAccount `rlrun-user`, whose rights an API key has.",
        "Create it, and bind a role to it.",
    ),
    (
        Reason.API_KEY_LIMIT_REACHED,
        "The namespace has as many API keys as are allowed.",
        "Delete one that is not used.",
    ),
    (Reason.API_KEY_NOT_FOUND, "The namespace has no API key with this id.", "List its keys."),
)

BASE_MODEL = _section(
    "Base model",
    "Reported by the container that downloads the model to the pod.",
    (
        Reason.INVALID_MODEL_SOURCE,
        "`spec.source` of the RLModel is not a valid source.",
        "Write `s3://bucket/path`, `hf://owner/name@COMMIT`, `pvc://claim/path` or `oci://registry/repository@sha256:DIGEST`.",
    ),
    (
        Reason.MODEL_ACCESS_DENIED,
        "The model on the Hugging Face hub is gated.",
        "Accept its licence, and name the Secret with a token: `HF_TOKEN` with `valueFrom` in `trainer.env` and "
        "`inference.env` of the RLModel.",
    ),
    (
        Reason.MODEL_HUB_UNREACHABLE,
        "The Hugging Face hub did not deliver the model.",
        "Check the network of the pods. The download is repeated.",
    ),
    (
        Reason.MODEL_FOLDER_NOT_WRITABLE,
        "The folder for the model cannot be written.",
        "Check the volume that holds the model.",
    ),
    (
        Reason.DISK_FULL,
        "The model does not fit on the disk of the pod, or on the volume of the RLModel's cache.",
        "Raise `cache.size` of the RLModel; without a cache give the pod more ephemeral storage.",
    ),
)

WEIGHTS = _section(
    "Cache of the weights",
    "Reasons of the condition WeightsCached of runs and models with a cache, and in the message of a deployment.",
    (Reason.WEIGHTS_CACHED, "The weights are on the volume of the namespace.", "None."),
    (
        Reason.WEIGHTS_DOWNLOADING,
        "A Job downloads the weights to the volume.",
        "Wait. The log of the Job shows the progress.",
    ),
    (
        Reason.WEIGHTS_NOT_CACHED,
        "The Job has failed, or the volume is being deleted.",
        "Correct the cause that the Job's pods name. The Job is created again every minute while a run or pool waits.",
    ),
)

WAITING = _section(
    "Waiting",
    "Reported while the orchestrator waits, and as the reason of the failure after a deadline.",
    (
        Reason.WAITING_FOR_TRAINER,
        "The trainer does not respond.",
        "See the message, the trainer's pod and its events.",
    ),
    (
        Reason.WAITING_FOR_INFERENCE,
        "No inference replica is ready with the current policy.",
        "See the message, the inference pods and their events.",
    ),
    (
        Reason.WAITING_FOR_ENVIRONMENT,
        "An environment is not ready.",
        "See the message and the environment's pod.",
    ),
    (
        Reason.WAITING_FOR_ARTIFACTS,
        "All steps are completed, and the last checkpoint and adapter are being uploaded.",
        "Wait.",
    ),
    (
        Reason.WAITING_FOR_EVALUATION,
        "All steps are completed, and the final policy is being evaluated.",
        "Wait.",
    ),
)

TRAINER = _section(
    "Trainer",
    "",
    (Reason.TRAINER_LOADING, "The trainer is loading the base model.", "Wait."),
    (Reason.TRAINER_STOPPING, "The trainer is shutting down.", "Wait for the pod that replaces it."),
    (
        Reason.MODEL_MISSING,
        "The trainer's model folder has no `config.json`.",
        "Check `spec.source` of the RLModel and the log of the container that downloads the model.",
    ),
    (
        Reason.MODEL_LOAD_FAILED,
        "The base model cannot be loaded.",
        "See the error in the message, often a damaged or unknown model.",
    ),
    (
        Reason.MODEL_UNSUPPORTED,
        "The trainer cannot train this model in this way. The message says why.",
        "Use another model, or follow the message.",
    ),
    (
        Reason.SAMPLES_NOT_SEPARATED,
        "The model computes other log probabilities for a sample in a batch than for the sample alone, in every layout "
        "of the batch.",
        "Use another model.",
    ),
    (
        Reason.PACKING_DISABLED,
        "The model mixes samples that share a row of a batch, so the trainer computes one sample per row.",
        "Nothing. Steps are correct and slower; `batch/padding` is the share of positions without a token.",
    ),
    (
        Reason.MODEL_MISMATCH,
        "The trainer serves another model than the run trains.",
        "Make the trainer's `--model` and the run's `spec.model` agree.",
    ),
    (
        Reason.DEVICE_MISSING,
        "A trainer or an engine cannot use the GPUs that its pod requests: the node's driver is too old for the image, "
        "the container got none or too few of them, or they do not work.",
        "Follow the message; [GPUs](../guides/models.md#gpus) has the causes. The run restarts with new pods, up to "
        "`maxRestarts` times; only for the image or an old driver it ends at once, if it has not trained before.",
    ),
    (Reason.NO_FREE_SLOT, "All adapter slots of the trainer are in use.", "Wait until another session ends."),
    (
        Reason.ADAPTER_INVALID,
        "`lora.targetModules` names layers that the model does not have, or that cannot be trained and served with "
        "LoRA, such as routers and routed experts.",
        "Choose among those that the message lists, or write `all-linear`.",
    ),
    (
        Reason.LORA_TARGETS_INCOMPLETE,
        "`lora.targetModules` leaves out whole layers of a model that consists of several kinds of layers.",
        "Write `all-linear`, or add the names in the message. Without a change these layers stay as in the base model.",
    ),
    (
        Reason.SESSION_INVALID,
        "The trainer cannot use the session's URIs.",
        "Report it: operator and images differ in version.",
    ),
    (
        Reason.SESSION_CONFLICT,
        "The trainer has a session of this run with other settings, or repeatedly loses the session.",
        "Nothing: the session is opened again from the newest checkpoint. If it repeats, read the trainer's log.",
    ),
    (
        Reason.SESSION_MISSING,
        "The trainer was restarted and does not have the session.",
        "Nothing: the orchestrator opens it again.",
    ),
    (
        Reason.ORCHESTRATOR_SUPERSEDED,
        "An orchestrator sent a request to the trainer after another one had opened the run's session, for example "
        "from a node that was cut off.",
        "Nothing: the request was refused, and this orchestrator ends.",
    ),
    *(
        (reason, f"The trainer cannot read {what}.", "Report it: the images differ in version.")
        for reason, what in (
            (Reason.SESSION_SPEC_INVALID, "the request that opens a session"),
            (Reason.TRAIN_BATCH_INVALID, "a batch"),
            (Reason.CHECKPOINT_REQUEST_INVALID, "a request for a checkpoint"),
        )
    ),
    (
        Reason.CHECKPOINT_MISMATCH,
        "The checkpoint does not fit the run: it has another shape, belongs to another run, or is damaged.",
        "Choose a checkpoint that fits, or correct the `lora` settings. The message names the difference.",
    ),
    (
        Reason.STEP_CONFLICT,
        "The orchestrator asked for a step that is not the trainer's next one.",
        "Nothing: the orchestrator continues at the trainer's step.",
    ),
    (
        Reason.STEP_RESULT_INVALID,
        "The trainer answered a request for a step with the result of another step. The result was not used.",
        "Nothing the first time: the orchestrator restarts at the trainer's step, up to `maxRestarts` times. If it "
        "repeats, use images of the same version, and report it with the trainer's log.",
    ),
    (
        Reason.STEP_NOT_FINITE,
        "Loss, mismatch or gradient norm of a step is not finite. The update was not applied.",
        "Lower `learningRate`, or continue from an older checkpoint.",
    ),
    (Reason.BATCH_INVALID, "A batch has no trainable token, or a sample is malformed.", "Report it with the message."),
    (Reason.RUN_COMPLETE, "All steps of the session are completed.", "Raise `maxSteps` to train further."),
    (
        Reason.POLICY_MISSING,
        "The trainer no longer has the policy that an engine requested.",
        "Nothing: the engine downloads it from S3.",
    ),
    (
        Reason.TRAINER_DISK_FULL,
        "The trainer cannot write to its disk, usually because it is full.",
        "Give the trainer more ephemeral storage, or raise the interval of checkpoints and adapters.",
    ),
    (Reason.TRAINER_ERROR, "The trainer failed unexpectedly.", "Read the trainer's log, and report it."),
    (
        Reason.UPLOAD_FAILED,
        "An upload failed for a cause other than S3.",
        "Read the trainer's log. After three such failures the artifact is not uploaded.",
    ),
    (
        Reason.UPLOADS_BEHIND,
        "Uploads take longer than the interval of checkpoints and adapters, and the queue is full.",
        "Raise the interval, or make S3 faster.",
    ),
    (
        Reason.CHECKPOINT_SKIPPED,
        "A checkpoint was skipped, because earlier uploads are still pending.",
        "Raise `checkpoints.interval`, or check S3.",
    ),
    (
        Reason.CHECKPOINT_EXCEEDS_GRACE_PERIOD,
        "A step and a checkpoint take longer than the trainer has after SIGTERM, so a drained node or a preemption may "
        "cost the steps since the last complete checkpoint.",
        "Raise `trainer.terminationGracePeriodSeconds` of the RLModel or `runs.terminationGracePeriodSeconds.trainer` "
        "of the chart, or lower `checkpoints.interval`.",
    ),
    (
        Reason.ADAPTER_SKIPPED,
        "An adapter was skipped, because earlier uploads are still pending.",
        "Raise `adapters.interval`, or check S3.",
    ),
)

INFERENCE = _section(
    "Inference",
    "",
    (
        Reason.INFERENCE_FAILED,
        "An engine did not respond to a request, or responded with an error.",
        "Read the log of the inference pods. The request is repeated on another replica.",
    ),
    (
        Reason.INFERENCE_ANSWER_UNUSABLE,
        "An engine's response lacks token ids or log-probabilities, which vLLM returns since 0.10.2, or a "
        "log-probability is not a number (NaN). The rollout is an error if it ends with this.",
        "Check the image, `inference.extraArgs` and the dtype of the RLModel, and the engine's log.",
    ),
    (
        Reason.ENGINE_UNREACHABLE,
        "The engine in the pod does not respond to its sidecar.",
        "Read the log of the `vllm` container.",
    ),
    (
        Reason.ADAPTER_DOWNLOAD_FAILED,
        "A policy or adapter could not be downloaded.",
        "See the cause in the message, usually S3 or a deleted adapter.",
    ),
    (
        Reason.ADAPTER_LOAD_REJECTED,
        "The engine rejected an adapter. The message gives its error.",
        "Check the adapter's rank and target modules against the RLModel.",
    ),
    (
        Reason.ADAPTER_IGNORED,
        "An engine loads adapters and ignores them: large weights in place of zeros do not change the probabilities of "
        "tokens. Every policy would be the base model.",
        "Use a vLLM version that serves adapters of the architecture; `inference.extraArgs` must not change it.",
    ),
    (
        Reason.ADAPTER_UNLOAD_REJECTED,
        "The engine did not unload an adapter.",
        "Nothing: the request is repeated. If it keeps failing, delete the pod.",
    ),
    (
        Reason.WEIGHTS_LOAD_REJECTED,
        "The engine rejected new weights of the whole model.",
        "See the engine's error in the message and its log.",
    ),
    (
        Reason.POLICY_KIND_WRONG,
        "An engine that serves adapters received full weights, or vice versa.",
        "Report it: operator and images differ in version.",
    ),
    (
        Reason.ADAPTERS_FOLDER_NOT_WRITABLE,
        "The sidecar cannot write the folder that it shares with the engine.",
        "Check the volume `adapters` of the pod.",
    ),
)

ENVIRONMENTS = _section(
    "Environments and demonstrations",
    "",
    (Reason.ENVIRONMENT_STARTING, "The environment is being installed, loaded or restarted.", "Wait."),
    (
        Reason.ENVIRONMENT_PACKAGE_MISSING,
        "The environment's package or version is not in the bucket.",
        "Push it: `rlrun env push`.",
    ),
    (
        Reason.ENVIRONMENT_CHANGED,
        "A package in the bucket differs from the one that the run began with (`status.environments`): its version was "
        "replaced, extended or deleted. The run does not train on with another one.",
        "Start a new run, with `checkpointId` to continue from its newest checkpoint. Raise the version with each push "
        "instead of `--force`.",
    ),
    (
        Reason.ENVIRONMENT_DIGEST_MISMATCH,
        "A package in the bucket has another digest than its entry in `env` or `eval.env`. The message has both.",
        "Find out who pushed it. Start a new run with the digest of the package that you want, or without one.",
    ),
    (
        Reason.ENVIRONMENT_INSTALL_FAILED,
        "The environment's package could not be installed. The message gives pip's error.",
        "Build the package again for the image's Python, and push a new version.",
    ),
    (
        Reason.ENVIRONMENT_LOAD_FAILED,
        "`load_environment` failed, timed out or returned no examples. The message names the line.",
        "Correct the environment or its `args`, and push a new version.",
    ),
    (
        Reason.ENVIRONMENT_TIMEOUT,
        "A rollout or a group timed out.",
        "Look for calls that hang, raise `rolloutTimeoutSeconds` of the environment, or use a larger "
        "`infrastructure.computeSize`.",
    ),
    (Reason.ENVIRONMENT_BUSY, "The environment did not return a demonstration in time.", "The request is repeated."),
    (
        Reason.ENVIRONMENT_WORKER_DIED,
        "A worker process of the environment exited or was killed. It is restarted.",
        "See the cause in the message, most often memory or blocking code.",
    ),
    (
        Reason.ENVIRONMENT_TOO_MANY_PROCESSES,
        "The environment's code started more processes and threads than its pod may have, and was killed.",
        "Start fewer at a time, wait for those that end, or use a larger `infrastructure.computeSize`, which has more "
        "workers.",
    ),
    (
        Reason.ORCHESTRATOR_UNREACHABLE,
        "The orchestrator does not respond: to the operator, which asks for the run's progress, or to an environment, "
        "which downloads its package.",
        "See the orchestrator's pod, its log and its node, and let NetworkPolicies pass requests of the operator. "
        "Requests are repeated.",
    ),
    (
        Reason.EXAMPLE_NOT_FOUND,
        "An example was requested that the dataset of the environment does not have.",
        "Keep the number of examples the same between restarts of an environment.",
    ),
    (Reason.NO_EXAMPLES, "No environment has examples to train on.", "Return a dataset from `load_environment`."),
    (
        Reason.DEMONSTRATIONS_MISSING,
        "An example has no prompt or no answer, which supervised steps need.",
        "Add `completion` or `answer` to each row, or train without `algorithm.sftSteps`.",
    ),
    (
        Reason.DEMONSTRATIONS_INVALID,
        "A demonstration has no message of the role `assistant`.",
        "Correct the rows of the dataset.",
    ),
    (
        Reason.DEMONSTRATIONS_TOO_LONG,
        "Most demonstrations fill the model's `seqLen` with their prompt.",
        "Shorten the prompts, or choose a model with a higher `seqLen`.",
    ),
    (
        Reason.CHAT_TEMPLATE_FAILED,
        "The engine cannot render a demonstration with its chat template.",
        "See the engine's error in the message, and correct the messages or the template.",
    ),
    (
        Reason.CHAT_TEMPLATE_MISMATCH,
        "The chat template renders a prompt differently when an answer follows it.",
        "Use a template whose generation prompt is a prefix of the whole conversation.",
    ),
)

ROLLOUTS = _section(
    "Rollouts",
    "A failed rollout is counted and not trained on. Its `error` and messages contain these reasons.",
    (
        Reason.REWARD_FUNCTION_ERRORS,
        "Rollouts had no valid reward. The message gives their number and the first error.",
        "Correct the reward functions; `rlrun rollouts` shows the errors.",
    ),
    (
        Reason.ROLLOUT_ERRORS,
        "Rollouts failed. The message gives their number and the first error.",
        "`rlrun rollouts` shows the errors; read the environment's log.",
    ),
    (Reason.NO_ERRORS, "No rollout had an invalid reward.", NOTHING),
    (
        Reason.REWARD_FUNCTION_ERROR,
        "A reward function raised an exception.",
        "Correct the line that the message names.",
    ),
    (
        Reason.REWARD_NOT_FINITE,
        "A reward is missing or not a finite number.",
        "Return a finite number from the reward function.",
    ),
    (
        Reason.ROLLOUT_FAILED,
        "The environment raised an exception in a rollout.",
        "Correct the line that the message names.",
    ),
    (
        Reason.ROLLOUT_NOT_RECORDED,
        "The environment reports a rollout that sent no request with its `X-Rollout-Id`.",
        "Send the id with every request to the given base URL.",
    ),
    (Reason.ROLLOUT_REPEATED, "The environment reported the same rollout twice.", "Give every rollout its own id."),
    (
        Reason.ROLLOUT_UNASKED,
        "The environment reported more rollouts than requested.",
        "Report as many rollouts as the request asks for.",
    ),
    (
        Reason.AGENTS_NOT_COMPARABLE,
        "No agent has rollouts in two episodes of a group, so that no reward can be compared with another one.",
        "Give each agent of the environment the same name in every episode.",
    ),
    (
        Reason.PROMPT_TOO_LONG,
        "A prompt left none of the model's `seqLen` for an answer. A rollout with earlier turns is trained on and "
        "counts as truncated.",
        "Shorten the prompts, end conversations earlier, or choose a model with a higher `seqLen`.",
    ),
    (
        Reason.REQUEST_REFUSED,
        "The gateway or the inference engine refused the rollout's last request. The message says why.",
        "Correct the request in the environment.",
    ),
    (Reason.GROUP_FAILED, "The orchestrator could not process a group.", "Read the orchestrator's log, and report it."),
    (
        Reason.EMPTY_BATCHES,
        "No group of a whole batch could be trained on. The run fails after ten such batches in a row if at least half "
        "of their groups failed, and after 1,000 groups that were filtered or had equal rewards, without a usable one "
        "between them.",
        "Correct the errors in the message, or change the difficulty of the examples or the filters.",
    ),
)

GATEWAY = _section(
    "Requests of environments",
    "The rollout gateway returns these to environments as the `type` of an OpenAI error.",
    (
        Reason.GROUP_UNKNOWN,
        "The group does not exist or has ended; its results are discarded.",
        "Stop sending requests for it.",
    ),
    (
        Reason.TOKEN_INVALID,
        "A process received a request without the token of its run.",
        "Nothing, if another run sent it. Otherwise restart the run: its pods have tokens of two keys.",
    ),
    (Reason.TOO_MANY_REQUESTS, "The group has too many concurrent requests.", "Wait for one of them to finish."),
    (Reason.TOO_MANY_ROLLOUTS, "The group has too many rollout ids.", "Use one id per rollout."),
    (Reason.TOO_MANY_TURNS, "The rollout has made too many requests.", "End the rollout earlier."),
    (Reason.BODY_TOO_LARGE, "The body of a request is too large.", "Send a smaller request."),
    (Reason.BODY_TOO_SLOW, "The body of a request did not arrive in time.", "Send it again."),
)

SURROUNDINGS = _section(
    "Evaluation, teacher and metrics",
    "",
    (
        Reason.BASE_MODEL_NOT_MEASURED,
        "The base model is not evaluated, because the engines hold the weights that the run starts from.",
        "Set `eval.evalBaseModel` to false, or evaluate it in a run without `checkpointId`.",
    ),
    (
        Reason.EVALUATION_ERRORS,
        "Examples could not be evaluated.",
        "See the cause in the message and the environment's log.",
    ),
    (Reason.EVALUATION_FAILED, "An evaluation failed unexpectedly.", "Read the orchestrator's log."),
    (
        Reason.EVALUATION_SKIPPED,
        "An evaluation was skipped, because the previous one was still running.",
        "Raise the interval, or lower `numExamples`.",
    ),
    (
        Reason.EVALUATION_TIMEOUT,
        "The final evaluation timed out.",
        "Lower `eval.numExamples`, or find out why the engines are slow.",
    ),
    (
        Reason.TEACHER_UNREACHABLE,
        "The teacher of a distillation does not respond.",
        "Check `algorithm.teacher.url` and the teacher's server.",
    ),
    (
        Reason.TEACHER_REFUSED,
        "The teacher rejects the requests, or redirects them. Redirects are not followed. As the error of a rollout: "
        "the teacher scores others, and refused this one, usually for its length.",
        "Check `algorithm.teacher`, the teacher's maximum length (one token more than `seqLen`) and the log of its "
        "server; name the final URL.",
    ),
    (
        Reason.TEACHER_ANSWER_UNUSABLE,
        "The teacher's response lacks log-probabilities of the tokens.",
        "Use a vLLM server whose model has the tokenizer of the trained model.",
    ),
    (
        Reason.WANDB_FAILED,
        "Metrics cannot be sent to Weights & Biases. The run continues.",
        "See the cause in the message, usually the key or the network.",
    ),
    (
        Reason.METRIC_NAMES_DROPPED,
        "The environments report more than 200 names of metrics and agents. The first 200 of the run are kept.",
        "Put no ids or texts into names of metrics; the message has some that were left out.",
    ),
    (Reason.NO_WARNINGS, "Earlier warnings no longer apply.", NOTHING),
)

TRAINING_ISSUES = _section(
    "Training issues",
    "Found in the metrics of the newest steps; the run continues.",
    (
        Reason.REWARD_FLAT_AT_ZERO,
        "The mean reward has been 0 for ten steps.",
        "Use easier examples, check the reward on some rollouts, or begin with `algorithm.sftSteps`.",
    ),
    (
        Reason.REWARD_FLAT_AT_ONE,
        "The mean reward has been 1 for ten steps.",
        "Use harder examples, or stop the run. Check that the reward function is strict enough.",
    ),
    (
        Reason.NO_REWARD_DIVERSITY,
        "In nearly all groups of five steps, all rollouts had the same reward.",
        "Raise `rolloutsPerExample` or `sampling.temperature`, or reward partial success.",
    ),
    (
        Reason.MOST_GROUPS_FILTERED,
        "At least 80 % of the rollouts of five steps were filtered for their rewards.",
        "Choose examples of other difficulty, or loosen the filters.",
    ),
    (
        Reason.REWARD_COLLAPSED,
        "The mean reward fell to half of its best or lower.",
        "Continue from the best checkpoint with a lower `learningRate` or a `klPenalty`.",
    ),
    (
        Reason.POLICY_MISMATCH,
        "Trainer and engines disagree on probabilities by 0.1 nats per token or more.",
        "Lower `learningRate` and `maxOffPolicySteps`; check `inference.extraArgs`.",
    ),
    (
        Reason.TOKENS_MASKED,
        "At least 30 % of the tokens are excluded from the loss for their importance ratio.",
        "Lower `maxOffPolicySteps` and `learningRate`, or widen `loss.ratioLow` and `loss.ratioHigh`.",
    ),
    (
        Reason.ENTROPY_COLLAPSED,
        "The policy's entropy fell near 0 while the reward is not high.",
        "Continue from an earlier checkpoint with a lower `learningRate` or a `klPenalty`.",
    ),
    (
        Reason.THROUGHPUT_STALLED,
        "The newest steps took more than four times as long as usual.",
        "See in the message which side is slow, and its pods.",
    ),
    (
        Reason.LONG_ROLLOUTS_LOST,
        "More than 5 % of the rollouts of ten steps were dropped, because they took longer than `maxOffPolicySteps` "
        "steps. The policy learns less from examples with long rollouts.",
        "Raise `maxOffPolicySteps`, or lower `oversamplingFactor` or `sampling.maxTokens`.",
    ),
)

TRAINING_HINTS = _section(
    "Training is healthy",
    "",
    (Reason.NOTHING_UNUSUAL, "The metrics show no issue.", NOTHING),
    (
        Reason.ROLLOUT_BOUND,
        "At least 70 % of the time is spent waiting for rollouts.",
        "To increase throughput, add inference replicas or raise `infrastructure.computeSize`.",
    ),
    (
        Reason.TRAINER_BOUND,
        "At least 70 % of the time is spent waiting for the trainer.",
        "To increase throughput, use a faster trainer or raise `trainer.microBatchTokens`.",
    ),
)

DEPLOYMENT = _section(
    "Deployed adapters",
    "Reported in `status.deploymentMessage` of the RLAdapter and in its Events.",
    (
        Reason.ADAPTER_NOT_READY,
        "The adapter is not uploaded completely, or is being deleted.",
        "Wait for its upload, or deploy another adapter.",
    ),
    (
        Reason.POOL_NOT_READY,
        "No engine of the serving pool became ready in time.",
        "`kubectl describe` the Deployment that the message names, and read the logs of its pods.",
    ),
    (
        Reason.POOL_REFUSED,
        "The API server rejects an object of the serving pool, usually because of a quota or an admission rule; or "
        "more adapters are to be deployed than a pool serves.",
        "Correct the cause that the message names.",
    ),
    (Reason.ADAPTERS_LOADING, "An engine is loading adapters and accepts no requests yet.", "Wait."),
    (
        Reason.NOT_AN_ADAPTER,
        "The files are a whole model, not an adapter.",
        "Use them as the source of an RLModel, and set `spec.deployed` to false.",
    ),
    (
        Reason.ADAPTER_RANK_TOO_HIGH,
        "The adapter's rank is higher than the engines of the pool accept.",
        "Raise `lora.rank` in the RLModel.",
    ),
    (Reason.DEPLOY_FAILED, "Event: the adapter cannot be served.", "See the cause in the message."),
    (
        Reason.UNLOAD_FAILED,
        "Event: an engine does not unload the adapter. The request is repeated.",
        "If it keeps failing, delete the named pod.",
    ),
    (Reason.ADAPTER_DEPLOYED, "Event: the adapter is served. The message has model name, URL and Secret.", NOTHING),
    (Reason.ADAPTER_UNDEPLOYED, "Event: the adapter is no longer served.", NOTHING),
)

EVENTS = _section(
    "Events only",
    "A run has an Event for each phase it reaches, and for each new reason of a readiness condition that is False.",
    (Reason.ATTEMPT_STARTED, "Another attempt has begun.", NOTHING),
    (Reason.CHECKPOINT_READY, "A checkpoint is complete in S3.", NOTHING),
    (Reason.RUN_RESTARTING, "An attempt failed, and another one follows.", "See the cause in the message."),
    (
        Reason.ORCHESTRATOR_REPLACED,
        "The orchestrator's pod was deleted, evicted or failed, and another one starts without the wait of its Job.",
        "If it was not deleted on purpose, see its log with `rlrun logs`.",
    ),
    (
        Reason.LOST_POD_DELETED,
        "A pod did not end within its grace period and 30 s more, because its node does not answer. Its object was "
        "deleted, so that the run does not wait for it.",
        "Repair the node, or remove it with `kubectl delete node`.",
    ),
    (
        Reason.OUTLIVED_POD_DELETED,
        "The run's process in a pod has ended, and a container that another program has put into the pod kept it "
        "running. The pod was deleted.",
        "No action needed. Programs that end with the pod's own containers, such as native sidecars, avoid it.",
    ),
    (
        Reason.ARTIFACTS_NOT_DELETED,
        "The run was deleted, and its files stay in S3: by annotation, or because S3 took too long.",
        "Delete them with an S3 client, or with `rlrun gc --mark-deleted NAMESPACE/UID` and garbage collection.",
    ),
)

REQUESTS = _section(
    "Requests between processes",
    "`HTTP404`, `HTTP502` and similar reasons are errors of a server or proxy outside this project. `NotFound` and "
    "other names of HTTP statuses are reported by a trainer of another version.",
    (Reason.UNREACHABLE, "A process does not respond.", "See its pod. Requests are repeated."),
    (
        Reason.ANSWER_INVALID,
        "A process cannot read the response of another one.",
        "Use images of the same version.",
    ),
    (
        Reason.ANSWER_TOO_LARGE,
        "The response of a process, or of the API server, is larger than allowed.",
        "See the message.",
    ),
    (Reason.INVALID_REQUEST, "A process rejects a malformed request.", "Use images of the same version."),
    (
        Reason.INTERNAL_ERROR,
        "A process failed unexpectedly because of a bug in this project.",
        "Read the log of the process, and report it.",
    ),
)

REST_API = _section(
    "REST API",
    "Reasons of problems with which rlrun-server answers requests of users, besides those above: `TokenInvalid`, "
    "`InvalidRequest`, `InvalidSpec`, `NameTaken`, `ObjectRefused` and others.",
    (
        Reason.NAMESPACE_NOT_FOUND,
        "The namespace does not exist, or you may not list rlruns in it. Which of both is not told.",
        "List your namespaces: `GET /rlrun/v1/namespaces`. Ask an administrator of the namespace for the role `view`.",
    ),
    (Reason.OBJECT_NOT_FOUND, "The object or path does not exist.", "Correct the name, or list what exists."),
    (
        Reason.ACCESS_FORBIDDEN,
        "You see the namespace, and lack the right that the message names.",
        "Ask an administrator of the namespace for the right.",
    ),
    (
        Reason.API_KEY_NOT_ALLOWED,
        "API keys only read here (`users.apiKeysMayWrite: false`): changes, logs of pods, Events and Secrets need a "
        "token that the API server knows. Or rlrun-server lacks the right to make tokens of `rlrun-user`.",
        "Send a Kubernetes token, or ask the platform team.",
    ),
    (
        Reason.CURSOR_MISMATCH,
        "The cursor is not one of this list with these filters and this order.",
        "Begin again without it.",
    ),
    (Reason.MEDIA_TYPE_UNSUPPORTED, "The body has a type that the route does not read.", "See the message."),
    (Reason.METHOD_NOT_ALLOWED, "The path does not have this method.", "See the header `Allow`."),
    (
        Reason.IDEMPOTENCY_KEY_REUSED,
        "The Idempotency-Key belongs to another request of yours.",
        "Choose a new key for each run.",
    ),
    (Reason.OBJECT_CHANGED, "Another user or program has changed the object.", "Read it again, and repeat the change."),
    (
        Reason.SERVER_NOT_READY,
        "rlrun-server has not read the objects of the cluster yet.",
        "Repeat the request. If that does not help, compare its role with `templates/server.yaml` of the chart.",
    ),
    (Reason.API_SERVER_UNAVAILABLE, "The API server does not answer rlrun-server.", "Repeat the request later."),
    (
        Reason.METRICS_TOO_LARGE,
        "The metrics of the run are larger than rlrun-server reads.",
        "Read them from S3: `rlrun metrics`.",
    ),
    (
        Reason.CROSS_SITE_REQUEST,
        "A request with the cookie of the page does not come from the page, as far as the server can tell.",
        "Use the page at the address at which the server is published: an Ingress must not change the header `Host`. "
        "Programs send `Authorization: Bearer`.",
    ),
    (
        Reason.CONNECTION_NOT_ENCRYPTED,
        "The page was loaded over http from another machine, where the credential of a login could be read.",
        "Open the page over https, or forward a port to your machine.",
    ),
    (
        Reason.LOGIN_CODE_INVALID,
        "The code of `rlrun open` has been used, or is older than a minute.",
        "Run `rlrun open` again.",
    ),
    (
        Reason.OIDC_LOGIN_REFUSED,
        "The login at the OIDC issuer took too long, began in another browser, or ended with a token that rlrun-server "
        "does not accept.",
        "Log in again. If that does not help, the platform team changes what the message names: `server.oidc` of the "
        "chart, or the client at the issuer.",
    ),
    (
        Reason.OIDC_ISSUER_UNAVAILABLE,
        "The OIDC issuer does not answer rlrun-server, or not as an issuer answers.",
        "Log in later, or with a token. The platform team compares `server.oidc.issuer` with the issuer's own name and "
        "checks `caBundle`, `proxy` and `networkPolicy.egress` of the chart.",
    ),
    (
        Reason.LOGS_NOT_AVAILABLE,
        "The run has no log of this role yet: its pods do not exist or start, or no copy of their logs was made.",
        "See what the run waits for, and repeat the request later. For an earlier attempt use `attempt`.",
    ),
)

SECTIONS = (
    LIFE,
    QUEUE,
    KUEUE,
    REFERENCES,
    MODELS,
    OBJECTS,
    PODS,
    DEADLINES,
    S3,
    BASE_MODEL,
    WEIGHTS,
    WAITING,
    TRAINER,
    INFERENCE,
    ENVIRONMENTS,
    ROLLOUTS,
    GATEWAY,
    SURROUNDINGS,
    TRAINING_ISSUES,
    TRAINING_HINTS,
    DEPLOYMENT,
    EVENTS,
    REQUESTS,
    REST_API,
)

NOT_READY_YET_OR_FINISHED = (
    Reason.NOT_STARTED,
    Reason.STARTING,
    Reason.RESTARTING,
    Reason.SUSPENDED,
    Reason.RUN_FINISHED,
)
REFUSED_PODS = (Reason.QUOTA_EXCEEDED, Reason.OBJECT_REFUSED)
CONDITIONS = (
    ConditionDescription(
        ConditionType.VALIDATED,
        "RLRun",
        "The spec is valid, and what it refers to exists.",
        (Reason.VALID,),
        (REFERENCES, S3),
    ),
    ConditionDescription(
        ConditionType.POD_TEMPLATE_VALID,
        "RLModel",
        "The API server accepts the pods of trainer and engines, as a dry run in the operator's namespace. Unknown if "
        "it did not answer, or if rights, quota, LimitRange or Pod Security of that namespace refuse the request: "
        "other namespaces may accept it. Absent if the RLModel is not valid.",
        (Reason.VALID,),
        (Reason.OBJECT_REFUSED, Reason.INTERNAL_ERROR),
    ),
    ConditionDescription(
        ConditionType.ADMITTED,
        "RLRun",
        "The run has its place in the queue. Absent without a queue.",
        (Reason.ADMITTED, Reason.KUEUE_UNAVAILABLE),
        (
            QUEUE,
            KUEUE,
            Reason.WAITING_FOR_PREVIOUS_PODS,
            Reason.PRIORITY_CLASS_NOT_ALLOWED,
            Reason.RUN_FINISHED,
        ),
    ),
    ConditionDescription(
        ConditionType.CHILDREN_APPLIED,
        "RLRun",
        "The API server accepts the run's own objects. Absent if it never refused one.",
        (Reason.APPLIED,),
        (
            Reason.QUOTA_EXCEEDED,
            Reason.OBJECT_REFUSED,
            Reason.NAME_TAKEN,
            Reason.OBJECTS_TOO_LARGE,
            Reason.NAMESPACE_NOT_TENANT,
        ),
    ),
    ConditionDescription(
        ConditionType.WEIGHTS_CACHED,
        "RLRun, RLModel",
        "The weights are on the volume of the namespace, or of all that use the model. Absent without a cache.",
        (Reason.WEIGHTS_CACHED,),
        (Reason.NOT_STARTED, WEIGHTS, *REFUSED_PODS, PODS, Reason.MODEL_NOT_FOUND, BASE_MODEL, S3),
    ),
    ConditionDescription(
        ConditionType.TRAINER_READY,
        "RLRun",
        "All pods of the trainer are ready.",
        (Reason.READY,),
        (
            *NOT_READY_YET_OR_FINISHED,
            *REFUSED_PODS,
            Reason.WAITING_FOR_TRAINER,
            PODS,
            TRAINER,
            Reason.MODEL_NOT_FOUND,
            BASE_MODEL,
            S3,
        ),
    ),
    ConditionDescription(
        ConditionType.INFERENCE_READY,
        "RLRun",
        "All inference replicas are ready.",
        (Reason.READY,),
        (
            *NOT_READY_YET_OR_FINISHED,
            *REFUSED_PODS,
            Reason.WAITING_FOR_INFERENCE,
            PODS,
            INFERENCE,
            Reason.MODEL_NOT_FOUND,
            BASE_MODEL,
            S3,
            Reason.INVALID_CONFIGURATION,
        ),
    ),
    ConditionDescription(
        ConditionType.ENVIRONMENTS_READY,
        "RLRun",
        "All environment servers are ready.",
        (Reason.READY,),
        (
            *NOT_READY_YET_OR_FINISHED,
            *REFUSED_PODS,
            Reason.WAITING_FOR_ENVIRONMENT,
            PODS,
            ENVIRONMENTS,
            Reason.SECRETS_MISSING,
            Reason.INVALID_CONFIGURATION,
        ),
    ),
    ConditionDescription(
        ConditionType.ORCHESTRATOR_READY,
        "RLRun",
        "The orchestrator's pod is ready, and none of the reasons on the right applies.",
        (Reason.READY,),
        (*NOT_READY_YET_OR_FINISHED, ConditionType.FAILED),
    ),
    ConditionDescription(
        ConditionType.RUNNING,
        "RLRun",
        "The first step of this attempt has begun.",
        (Reason.RUNNING,),
        (
            Reason.STARTING,
            Reason.WAITING_FOR_PREVIOUS_PODS,
            Reason.RESTARTING,
            Reason.SUSPENDED,
            Reason.STOPPED,
            Reason.COMPLETED,
            Reason.FAILED,
            QUEUE,
            KUEUE,
            REFERENCES,
        ),
    ),
    ConditionDescription(
        ConditionType.REWARD_FUNCTIONS_HEALTHY,
        "RLRun",
        "No rollout of the run had an invalid reward.",
        (Reason.NO_ERRORS,),
        (Reason.REWARD_FUNCTION_ERRORS,),
    ),
    ConditionDescription(
        ConditionType.TRAINING_HEALTHY,
        "RLRun",
        "The metrics of the newest steps show no issue.",
        (TRAINING_HINTS,),
        (TRAINING_ISSUES,),
    ),
    ConditionDescription(
        ConditionType.WARNINGS,
        "RLRun, RLModel",
        "The run continues, or the RLModel can be used, but the cause in the message needs attention.",
        (
            Reason.ROLLOUT_ERRORS,
            Reason.CHECKPOINT_SKIPPED,
            Reason.CHECKPOINT_EXCEEDS_GRACE_PERIOD,
            Reason.ADAPTER_SKIPPED,
            Reason.UPLOAD_FAILED,
            Reason.PACKING_DISABLED,
            Reason.LORA_TARGETS_INCOMPLETE,
            S3,
            SURROUNDINGS,
            ENVIRONMENTS,
            Reason.GROUP_FAILED,
            REQUESTS,
            MODELS,
        ),
        (Reason.NO_WARNINGS,),
    ),
    ConditionDescription(
        ConditionType.ARTIFACTS_LISTED,
        "RLRun",
        "The operator has read the run's artifacts from S3.",
        (Reason.LISTED,),
        (S3, Reason.S3_CREDENTIALS_MISSING),
    ),
    ConditionDescription(
        ConditionType.ARTIFACTS_RECORDED,
        "RLRun",
        "The API server accepts the objects of checkpoints and adapters. Absent if it never refused one.",
        (Reason.APPLIED,),
        (Reason.QUOTA_EXCEEDED, Reason.OBJECT_REFUSED, Reason.NAME_TAKEN),
    ),
    ConditionDescription(
        ConditionType.ARTIFACTS_CLEANED_UP,
        "RLRun",
        "Retention deletes old artifacts again. Absent if it never failed.",
        (Reason.CLEANED_UP,),
        (S3,),
    ),
    ConditionDescription(
        ConditionType.COMPLETED,
        "RLRun",
        "All steps are completed.",
        (Reason.COMPLETED,),
        (Reason.NOT_COMPLETED, Reason.STOPPED, ConditionType.FAILED),
    ),
    ConditionDescription(
        ConditionType.FAILED,
        "RLRun",
        "The run failed. The reason is that of the failure.",
        (
            REFERENCES,
            Reason.QUOTA_EXCEEDED,
            Reason.OBJECT_REFUSED,
            Reason.NAME_TAKEN,
            PODS,
            DEADLINES,
            S3,
            BASE_MODEL,
            WAITING,
            TRAINER,
            INFERENCE,
            ENVIRONMENTS,
            Reason.EMPTY_BATCHES,
            SURROUNDINGS,
            REQUESTS,
        ),
        (Reason.NOT_FAILED,),
    ),
    ConditionDescription(
        ConditionType.DELETED,
        "RLCheckpoint, RLAdapter",
        "Never True: the object is deleted together with its files.",
        (),
        (S3,),
    ),
    ConditionDescription(
        ConditionType.VERIFIED,
        "RLCheckpoint, RLAdapter",
        "Never True: False if the files are not those that became Ready.",
        (),
        (Reason.ARTIFACT_CHANGED,),
    ),
)
