"""What the spec refers to: the model, the checkpoint, Secrets and S3."""

from typing import Any

import pytest
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.policies.validation import resolve_references

from tests.support.cluster_objects import model_object, run_object
from tests.support.run_states import run_spec

Obj = dict[str, Any]


def checkpoint_object(**more: Any) -> Obj:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLCheckpoint",
        "metadata": {"name": "old", "namespace": "team"},
        "spec": {
            "runName": "old-run",
            "runUid": "u",
            "model": "tiny/model",
            "step": 5,
            "uri": "s3://rlrun/team/u/checkpoints/step-000005",
            **more.pop("spec", {}),
        },
        "status": {"phase": "Ready", **more},
    }


VALIDATIONS: list[tuple[str, Obj, Obj, str | None]] = [
    ("all is there", {}, {}, None),
    ("no models at all", {}, {"models": ()}, "ModelNotFound"),
    ("another model", {"model": "x/y"}, {}, "ModelNotFound"),
    ("too many tokens", {"sampling": {"maxTokens": 256}}, {}, "MaxTokensTooLarge"),
    ("just enough tokens", {"sampling": {"maxTokens": 255}}, {}, None),
    ("several nodes", {}, {"models": (model_object(trainer={"gpus": 8, "nodes": 2}),)}, None),
    ("all weights", {"lora": {"enabled": False}}, {}, "FullFineTuningNotAllowed"),
    (
        "all weights, allowed",
        {"lora": {"enabled": False}},
        {"models": (model_object(trainer={"fullFineTuning": True}),)},
        None,
    ),
    ("rank above the engine's", {"lora": {"rank": 17}}, {}, "LoraRankTooHigh"),
    ("rank of the engine", {"lora": {"rank": 16}}, {}, None),
    (
        "unknown targets",
        {"lora": {"targetModules": ["q_proj", "lm_head"]}},
        {"models": (model_object(lora={"targetModules": ["q_proj", "v_proj"]}),)},
        "LoraTargetsUnknown",
    ),
    (
        "all targets of a model that lists some",
        {"lora": {"targetModules": ["all-linear"]}},
        {"models": (model_object(lora={"targetModules": ["q_proj", "v_proj"]}),)},
        "LoraTargetsUnknown",
    ),
    (
        "some of the targets",
        {"lora": {"targetModules": ["q_proj"]}},
        {"models": (model_object(lora={"targetModules": ["q_proj", "v_proj"]}),)},
        None,
    ),
    (
        "any target",
        {"lora": {"targetModules": ["lm_head"]}},
        {"models": (model_object(lora={"targetModules": ["all-linear"]}),)},
        None,
    ),
    ("any target of the default", {"lora": {"targetModules": ["q_proj"]}}, {}, None),
    ("broken model", {}, {"models": (model_object(seqLen="long"),)}, "ModelInvalid"),
    ("no checkpoint", {"checkpointId": "old"}, {}, "CheckpointNotFound"),
    ("checkpoint", {"checkpointId": "old"}, {"warm_start": checkpoint_object()}, None),
    (
        "uploading",
        {"checkpointId": "old"},
        {"warm_start": checkpoint_object(phase="Uploading")},
        "CheckpointNotReady",
    ),
    (
        "other model",
        {"checkpointId": "old"},
        {"warm_start": checkpoint_object(spec={"model": "x/y"})},
        "CheckpointModelMismatch",
    ),
    ("not shared", {"checkpointId": "other/old"}, {"warm_start": checkpoint_object()}, "CheckpointNotShared"),
    (
        "shared",
        {"checkpointId": "other/old"},
        {"warm_start": checkpoint_object(spec={"sharedWith": ["team"]})},
        None,
    ),
    ("secrets", {}, {"missing_secrets": ("judge",)}, "SecretsMissing"),
    ("S3", {}, {"s3_problem": Problem(reason="S3Unreachable", message="m")}, "S3Unreachable"),
]


@pytest.mark.proves("model", "checkpointId", "lora.enabled", "lora.rank", "lora.targetModules", "sampling.maxTokens")
@pytest.mark.parametrize(("what", "run", "seen", "reason"), VALIDATIONS, ids=[v[0] for v in VALIDATIONS])
def test_validation(what: str, run: Obj, seen: Obj, reason: str | None) -> None:
    obj = run_object(**run)
    found = resolve_references(run_spec(**run), RunObservation(**{"run": obj, "models": (model_object(),), **seen}))
    assert (found.reason if isinstance(found, Problem) else None) == reason
    if isinstance(found, Problem) and what != "S3":
        assert len(found.message) > 40, "the message has to say what to do"
