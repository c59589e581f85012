"""The messages that the processes of one run send each other over HTTP.

Every process is a server with a handful of JSON routes; this module is the whole vocabulary, so that a reader can see
what crosses each wire without opening either end. A failed request is data, not a crash: whoever cannot do what it was
asked answers a `Problem` with a reason in CamelCase (it becomes a condition's reason) and a message for people.

    trainer       :8080  GET /healthz /readyz /metrics
                         PUT    /sessions/{session}                      SessionSpec    -> SessionState
                         GET    /sessions/{session}                                     -> SessionState
                         POST   /sessions/{session}/steps/{step}         TrainBatch     -> StepResult   (idempotent)
                         POST   /sessions/{session}/checkpoints/{step}   CheckpointRequest -> SessionState (202)
                         POST   /sessions/{session}/adapters/{step}                     -> SessionState (202)
                         GET    /sessions/{session}/policies/{policy}/{file}            the newest policies, while S3
                                                                                        is away; manifest.json first
                         DELETE /sessions/{session}
    environment   :8080  GET /healthz /readyz /metrics
                         GET    /info                                                   -> EnvironmentInfo
                         POST   /groups                                  GroupRequest   -> GroupResult
                         POST   /demonstrations                          DemonstrationRequest -> Demonstration
    sidecar       :8001  GET /healthz /readyz /metrics
                         GET    /adapters                                               -> AdapterList
                         PUT    /adapters/{name}                         LoadRequest    -> AdapterList (confirmed)
                         DELETE /adapters/{name}                                        -> AdapterList
    vLLM          :8000  the OpenAI API; an adapter's name is its model name
    orchestrator  :8000  the rollout gateway: /groups/{group}/v1/chat/completions, /completions, /models;
                         rollout id in the header X-Rollout-Id
                  :8080  GET /healthz /readyz /metrics, GET /status                     -> RunStatus

What the operator and the pools of deployed adapters say to each other is in `rlrun.protocol.serving`.
"""

from rlrun.api.base.schema import Schema


class Problem(Schema):
    """Why something cannot go on, and what a person does about it."""

    reason: str
    """One CamelCase word, stable enough to be matched by machines: `EnvironmentLoadFailed`, `S3AccessDenied`."""
    message: str
    """What happened and the next step, for people."""


# --- policy ---------------------------------------------------------------------------------------------------------


# --- trainer --------------------------------------------------------------------------------------------------------


# --- environment ----------------------------------------------------------------------------------------------------


# --- orchestrator ---------------------------------------------------------------------------------------------------
