"""What the spec refers to: the model, the checkpoint, Secrets and S3."""

import json
from typing import Any

import pytest
from rlrun.kube.objects import Obj
from rlrun.protocol.problem import Problem
from rlrun_operator.config.settings import EgressSettings, OperatorSettings, SecretRef, ServerCertificate
from rlrun_operator.planning import spec as validation
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.spec import MAX_KEPT, UNREADABLE, parse_spec, readable_part, resolve_references
from rlrun_operator.resources.access.observed_secret import ObservedSecret

from tests.support.cluster_objects import checkpoint_object, hub_secret, model_object, run_object
from tests.support.expectations import lacks, present
from tests.support.operator_world import SETTINGS
from tests.support.run_states import run_spec


def old_checkpoint(phase: str = "Ready", **spec: Any) -> Obj:
    found = checkpoint_object("old", 5, "s3://rlrun/team/u/checkpoints/step-000005", uid="u", phase=phase)
    return {**found, "spec": {**found["spec"], **spec}}


OF_OPERATOR = {"app.kubernetes.io/managed-by": "rlrun-operator"}
OTHER = {"name": "old", "namespace": "other"}
EGRESS = EgressSettings(
    host="proxy", allowed=["*.example.com"], key_secret=SecretRef(namespace="rlrun-system", name="egress")
)
SETTINGS_WITH_RULES = SETTINGS.model_copy(
    update={
        "priority_classes": ["training-*"],
        "environment_owners": {"own": ["team", "lab-*"], "hidden": ["lab-*"], "nobody": []},
        "egress": EGRESS,
        "storage_server_certificate": ServerCertificate(
            secret=SecretRef(namespace="rlrun-system", name="rlrun-operator-server-certificate")
        ),
        "private_addresses": ["teacher.models.svc"],
    }
)
SIGNING = {"egress_key": b"k" * 32}


def shared_checkpoint() -> Obj:
    return old_checkpoint(sharedWith=["team"], uri="s3://rlrun/other/u/checkpoints/step-000005")


def teacher(url: str) -> Obj:
    return {"algorithm": {"name": "distillation", "teacher": {"url": url, "model": "a/b"}}}


def secrets(name: str, optional: bool = False) -> Obj:
    return {"envFrom": [{"secretRef": {"name": name, "optional": optional}}]}


def observed(name: str, key: str = "KEY", value: str = "v", labels: dict[str, str] | None = None) -> Obj:
    return {"secrets": ObservedSecret.by_name([hub_secret(value, name=name, key=key, labels=labels)])}


def judged(*hosts: str) -> Obj:
    return {"env": [{"id": "o/e"}, {"id": "o/judge", "egress": list(hosts)}]}


def arguments(field: str, size: int, character: str = "x") -> Obj:
    """An environment with so many bytes of arguments."""
    empty, each = len(json.dumps({"rows": ""})), len(json.dumps(character)) - 2
    return {"env": [{"id": "me/first"}, {"id": "me/second", field: {"rows": character * ((size - empty) // each)}}]}


OLD = {"checkpointId": "old"}
ALL_WEIGHTS = {"lora": {"enabled": False}}
LISTS_TARGETS = {"models": (model_object(lora={"targetModules": ["q_proj", "v_proj"]}),)}
VALIDATIONS: list[tuple[str, Obj, Obj, str | None]] = [
    ("all is there", {}, {}, None),
    ("no models at all", {}, {"models": ()}, "ModelNotFound"),
    ("another model", {"model": "x/y"}, {}, "ModelNotFound"),
    ("too many tokens", {"sampling": {"maxTokens": 256}}, {}, "MaxTokensTooLarge"),
    (
        "too many tokens in an environment",
        {"env": [{"id": "acme/reverse-text", "sampling": {"maxTokens": 256}}]},
        {},
        "MaxTokensTooLarge",
    ),
    (
        "too many tokens in evaluations",
        {"eval": {"env": [{"id": "acme/reverse-text"}], "sampling": {"maxTokens": 256}}},
        {},
        "MaxTokensTooLarge",
    ),
    (
        "too many tokens in an evaluation",
        {"eval": {"env": [{"id": "acme/reverse-text", "sampling": {"maxTokens": 256}}]}},
        {},
        "MaxTokensTooLarge",
    ),
    ("just enough tokens", {"sampling": {"maxTokens": 255}}, {}, None),
    ("tokens of the model, half of its sequences", {"sampling": {"minTokens": 128}}, {}, None),
    ("more than those at least", {"sampling": {"minTokens": 129}}, {}, "InvalidSpec"),
    (
        "more than the model's default at least",
        {"sampling": {"minTokens": 33}},
        {"models": (model_object(defaultMaxTokens=32),)},
        "InvalidSpec",
    ),
    ("several nodes", {}, {"models": (model_object(trainer={"gpus": 8, "nodes": 2}),)}, None),
    ("all weights", ALL_WEIGHTS, {}, "FullFineTuningNotAllowed"),
    ("all weights, allowed", ALL_WEIGHTS, {"models": (model_object(trainer={"fullFineTuning": True}),)}, None),
    ("rank above the engine's", {"lora": {"rank": 17}}, {}, "LoraRankTooHigh"),
    ("rank of the engine", {"lora": {"rank": 16}}, {}, None),
    ("unknown targets", {"lora": {"targetModules": ["q_proj", "lm_head"]}}, LISTS_TARGETS, "LoraTargetsUnknown"),
    (
        "all targets of a model that lists some",
        {"lora": {"targetModules": ["all-linear"]}},
        LISTS_TARGETS,
        "LoraTargetsUnknown",
    ),
    ("some of the targets", {"lora": {"targetModules": ["q_proj"]}}, LISTS_TARGETS, None),
    (
        "any target",
        {"lora": {"targetModules": ["lm_head"]}},
        {"models": (model_object(lora={"targetModules": ["all-linear"]}),)},
        None,
    ),
    ("experts that the model does not list", {"lora": {"targetModules": ["experts"]}}, {}, "LoraTargetsUnknown"),
    (
        "experts",
        {"lora": {"targetModules": ["experts"]}},
        {"models": (model_object(lora={"targetModules": ["all-linear", "experts"]}),)},
        None,
    ),
    ("any target of the default", {"lora": {"targetModules": ["q_proj"]}}, {}, None),
    ("broken model", {}, {"models": (model_object(seqLen="long"),)}, "ModelInvalid"),
    ("no checkpoint", OLD, {}, "CheckpointNotFound"),
    ("checkpoint", OLD, {"warm_start": old_checkpoint()}, None),
    ("uploading", OLD, {"warm_start": old_checkpoint(phase="Uploading")}, "CheckpointNotReady"),
    ("other model", OLD, {"warm_start": old_checkpoint(model="x/y")}, "CheckpointModelMismatch"),
    ("not shared", {"checkpointId": "other/old"}, {"warm_start": old_checkpoint()}, "CheckpointNotFound"),
    ("shared", {"checkpointId": "other/old"}, {"warm_start": {**shared_checkpoint(), "metadata": OTHER}}, None),
    ("not shared, by its id", {"checkpointId": "cp_other.old"}, {"warm_start": old_checkpoint()}, "CheckpointNotFound"),
    ("by its id", {"checkpointId": "cp_team.old"}, {"warm_start": old_checkpoint()}, None),
    ("unknown id", {"checkpointId": "cp_abc123"}, {}, "CheckpointNotFound"),
    (
        "URI of another namespace",
        OLD,
        {"warm_start": old_checkpoint(uri="s3://rlrun/other/u/checkpoints/step-000005")},
        "ArtifactNotOwned",
    ),
    (
        "run uid that leads into another namespace",
        OLD,
        {"warm_start": old_checkpoint(runUid="../other/u", uri="s3://rlrun/team/../other/u/checkpoints/step-000005")},
        "ArtifactNotOwned",
    ),
    (
        "shared by another namespace with a URI of a third",
        {"checkpointId": "other/old"},
        {"warm_start": {**old_checkpoint(sharedWith=["team"]), "metadata": OTHER}},
        "ArtifactNotOwned",
    ),
    ("secrets", secrets("judge"), {}, "SecretsMissing"),
    ("no key of Weights & Biases", {"wandb": {}}, {}, "WandbKeyMissing"),
    ("no such entry", {"wandb": {}, **secrets("judge")}, observed("judge", "KEY"), "WandbKeyMissing"),
    ("a key", {"wandb": {}, **secrets("judge")}, observed("judge", "WANDB_API_KEY"), None),
    ("an empty key", {"wandb": {}, **secrets("judge")}, observed("judge", "WANDB_API_KEY", ""), "WandbKeyMissing"),
    ("a blank key", {"wandb": {}, **secrets("judge")}, observed("judge", "WANDB_API_KEY", " \n"), "WandbKeyMissing"),
    ("a key of the model", {"wandb": {}}, observed("hub", "WANDB_API_KEY"), "WandbKeyMissing"),
    ("a key that is not needed", {"wandb": {"offline": True}}, {}, None),
    ("own secret", secrets("judge"), observed("judge"), None),
    ("an optional secret", secrets("judge", optional=True), {}, None),
    ("tokens of the run", secrets("reverse-rlrun-token"), {}, "SecretReserved"),
    ("name of a Secret with S3 credentials", secrets("next-s3", optional=True), {}, "SecretReserved"),
    ("secret of the operator", secrets("odd"), observed("odd", labels=OF_OPERATOR), "SecretReserved"),
    ("name of the platform's secret in another namespace", secrets("s3"), observed("s3"), None),
    ("priority class of the system", {"priorityClassName": "system-node-critical"}, {}, "PriorityClassNotAllowed"),
    ("allowed priority class", {"priorityClassName": "training-low"}, {}, None),
    ("package of an own owner", {"env": [{"id": "own/e"}]}, {}, None),
    ("package of a public owner", {"env": [{"id": "other/e"}]}, {}, None),
    ("package of another tenant", {"env": [{"id": "o/e"}, {"id": "hidden/f"}]}, {}, "EnvironmentNotAllowed"),
    ("package of another tenant to evaluate on", {"eval": {"env": [{"id": "hidden/e"}]}}, {}, "EnvironmentNotAllowed"),
    ("package that nobody may use", {"env": [{"id": "nobody/e"}]}, {}, "EnvironmentNotAllowed"),
    ("no egress, no key", {}, {}, None),
    ("an allowed host", judged("judge.example.com"), SIGNING, None),
    ("a host of the namespace", judged("a.org:8443"), {**SIGNING, "egress_hosts": ("a.org:8443",)}, None),
    ("another port", judged("judge.example.com:22"), SIGNING, "EgressNotAllowed"),
    ("a host that is not allowed", judged("judge.example.com", "evil.org"), SIGNING, "EgressNotAllowed"),
    ("all hosts of a domain", judged("*.example.org"), SIGNING, "EgressNotAllowed"),
    ("of an evaluation", {"eval": {"env": judged("evil.org")["env"]}}, SIGNING, "EgressNotAllowed"),
    (
        "no signing key",
        judged("judge.example.com"),
        {"egress_problem": Problem(reason="EgressUnavailable", message="The platform team must create the Secret.")},
        "EgressUnavailable",
    ),
    ("teacher on the internet", teacher("https://teacher.example.com/v1"), {}, None),
    ("teacher that the platform allows", teacher("http://teacher.models.svc:8000/v1"), {}, None),
    ("teacher inside the cluster", teacher("http://kubernetes.default.svc/v1"), {}, "AddressNotAllowed"),
    ("teacher at a private address", teacher("http://10.0.0.5:8000/v1"), {}, "AddressNotAllowed"),
    ("teacher on the node", teacher("http://localhost:10255/v1"), {}, "AddressNotAllowed"),
    ("metadata of the cloud", teacher("http://169.254.169.254/latest"), {}, "AddressNotAllowed"),
    ("arguments beyond the size of a variable", arguments("args", 127 * 1024 + 1), {}, "EnvironmentArgsTooLarge"),
    ("the largest arguments", arguments("args", 127 * 1024), {}, None),
    ("a taskset beyond it", arguments("taskset", 127 * 1024 + 1), {}, "EnvironmentArgsTooLarge"),
    ("a harness beyond it", arguments("harness", 127 * 1024 + 1), {}, "EnvironmentArgsTooLarge"),
    ("S3", {}, {"s3_problem": Problem(reason="S3Unreachable", message="m")}, "S3Unreachable"),
]


def judge(run: Obj, settings: OperatorSettings = SETTINGS, namespace: str = "team", **seen: Any) -> Problem | None:
    """The problem of a run with these fields, and of what was seen of its references."""
    obj = run_object(namespace=namespace, **run)
    observation = RunObservation(**{"run": obj, "models": (model_object(),), **seen})
    found = resolve_references(run_spec(**run), observation, observation.status, settings)
    return found if isinstance(found, Problem) else None


def reason_of(problem: Problem | None) -> str | None:
    return problem and problem.reason


@pytest.mark.proves("model", "checkpointId", "lora.enabled", "lora.rank", "lora.targetModules", "sampling.maxTokens")
@pytest.mark.parametrize(("what", "run", "seen", "reason"), VALIDATIONS, ids=[v[0] for v in VALIDATIONS])
def test_validation(what: str, run: Obj, seen: Obj, reason: str | None) -> None:
    found = judge(run, SETTINGS_WITH_RULES, **seen)
    assert reason_of(found) == reason
    if found and what != "S3":
        assert len(found.message) > 40, "the message has to say what to do"


@pytest.mark.parametrize("hidden", [old_checkpoint(), old_checkpoint(phase="Uploading"), old_checkpoint(step="odd")])
def test_a_checkpoint_that_is_not_shared_looks_as_if_it_did_not_exist(hidden: Obj) -> None:
    missing, found = (judge({"checkpointId": "other/old"}, warm_start=warm_start) for warm_start in (None, hidden))
    assert found == present(missing)


@pytest.mark.parametrize("namespace", ["environments", "models"])
def test_namespace_with_the_name_of_a_shared_folder_is_refused(namespace: str) -> None:
    """Its runs would write what others take for a package or a base model."""
    assert reason_of(judge({}, namespace=namespace)) == "NamespaceReserved"


@pytest.mark.parametrize("name", ["rlrun-operator-run-tokens", "egress", "rlrun-operator-server-certificate"])
def test_keys_of_the_platform_are_reserved_in_its_namespace(name: str) -> None:
    for namespace, reason in (("rlrun-system", "SecretReserved"), ("team", None)):
        assert reason_of(judge(secrets(name, optional=True), SETTINGS_WITH_RULES, namespace)) == reason


@pytest.mark.proves("env.egress", "eval.env.egress")
def test_a_platform_without_a_proxy_allows_no_host() -> None:
    for run, field in ((judged("a.org"), "env[1]"), ({"eval": {"env": judged("a.org")["env"]}}, "eval.env[1]")):
        found = present(judge(run, **SIGNING))
        assert (found.reason, "no egress proxy" in found.message) == ("EgressNotAllowed", True)
        found = present(judge(run, SETTINGS_WITH_RULES, **SIGNING))
        assert f"`spec.{field}.egress` lists a.org" in found.message


@pytest.mark.parametrize("name", ["s3", "reverse-rlrun-token"])
def test_credentials_and_tokens_are_reserved_without_any_pattern(name: str) -> None:
    settings = SETTINGS.model_copy(update={"reserved_secret_names": []})
    assert reason_of(judge(secrets(name), settings, settings.s3.credentials_secret.namespace)) == "SecretReserved"


@pytest.mark.parametrize("url", ["http://10.0.0.5:8000/v1", "http://teacher:8000/v1"])
def test_a_refused_address_is_named_with_its_field_and_the_remedy(url: str) -> None:
    found = present(judge(teacher(url)))
    host = url.split("/")[2].split(":")[0]
    assert not lacks(found.message, "`spec.algorithm.teacher.url`", host, "runs.privateAddresses")


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (arguments("args", 300_000), ("`spec.env[1].args` is 300000 bytes", "300000 bytes in total")),
        (arguments("args", 150_000, "ü"), ("`spec.env[1].args` is 150000 bytes", "150000 bytes in total")),
        (
            {"eval": {"env": [{"id": "me/exam", "args": {"a": "x" * 70_000}, "harness": {"h": "x" * 80_000}}]}},
            ("`spec.eval.env[0].harness` is 80009 bytes", "150018 bytes in total"),
        ),
    ],
    ids=["args", "letters that JSON escapes", "sum"],
)
def test_arguments_that_no_process_can_get_are_named_with_size_and_limit(spec: Obj, names: tuple[str, ...]) -> None:
    found = present(judge(spec))
    assert not lacks(found.message, *names, "130048 bytes")


def in_environments(sampling: Obj, train: Obj | None = None, **evaluation: Obj) -> Obj:
    """A run with this sampling section, overrides of its second environment, and of `eval` and its environment."""
    env = [{"id": "o/first"}, {"id": "o/second", "sampling": train or {}}]
    if not evaluation:
        return {"sampling": sampling, "env": env}
    exam = [{"id": "o/exam", "sampling": evaluation.get("env", {})}]
    return {"sampling": sampling, "env": env, "eval": {"sampling": evaluation.get("all", {}), "env": exam}}


THINKING, EFFORT = {"enableThinking": False}, {"reasoningEffort": "low"}
LEAST, MOST = {"minTokens": 20}, {"maxTokens": 10}


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (in_environments(LEAST, MOST), ("`spec.env[1].sampling.maxTokens` is 10", "`spec.sampling.minTokens` is 20")),
        (in_environments(LEAST, all=MOST), ("`spec.eval.sampling.maxTokens` is 10",)),
        (in_environments(LEAST, env=MOST), ("`spec.eval.env[0].sampling.maxTokens` is 10",)),
        (
            in_environments(THINKING, EFFORT),
            ('`spec.env[1].sampling.reasoningEffort` is "low"', "`spec.sampling.enableThinking` is false"),
        ),
        (
            in_environments({}, THINKING | EFFORT),
            ("`spec.env[1].sampling.reasoningEffort`", "`spec.env[1].sampling.enableThinking`"),
        ),
        (
            in_environments({}, all=THINKING, env=EFFORT),
            ("`spec.eval.env[0].sampling.reasoningEffort`", "`spec.eval.sampling.enableThinking`"),
        ),
    ],
    ids=["tokens", "of evaluations", "of one", "reasoning", "within one section", "of evaluations and of one"],
)
def test_overrides_of_an_environment_satisfy_the_rules_of_sampling(run: Obj, names: tuple[str, ...]) -> None:
    found = present(judge(run))
    assert found.reason == "InvalidSpec"
    assert not lacks(found.message, *names, "Start a new run")


def test_a_run_that_an_earlier_version_has_accepted_continues_without_rules_between_fields() -> None:
    run = in_environments(LEAST, MOST)
    accepted = {**run_object(**run), "status": {"resolved": {"maxTokens": 100}}}
    observation = RunObservation(accepted, models=(model_object(),))
    assert not isinstance(resolve_references(run_spec(**run), observation, observation.status, SETTINGS), Problem)


@pytest.mark.parametrize(
    "run",
    [
        in_environments(LEAST, {"maxTokens": 20}, all=MOST, env={"maxTokens": 30}),
        in_environments(THINKING, {"enableThinking": True}, env={"enableThinking": True}),
        in_environments({}, EFFORT, all=THINKING),
    ],
    ids=["an environment of eval has more", "the same variable", "training and evaluation differ"],
)
def test_overrides_that_replace_a_conflict_are_accepted(run: Obj) -> None:
    assert judge(run) is None


def test_only_small_specs_are_kept_parsed() -> None:
    """The operator's memory must not depend on what tenants write."""
    small, large = (
        {"spec": {"model": "a/b", "env": [{"id": "o/e", "args": {"text": "x" * size}}]}} for size in (10, MAX_KEPT)
    )
    assert parse_spec(small) is parse_spec(small)
    assert parse_spec(large) is not parse_spec(large)
    assert parse_spec(large) == parse_spec(large)


def test_a_spec_beyond_the_bound_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    monkeypatch.setattr(validation, "_parse", lambda text: parsed.append(len(text)))
    rows = {"rows": "x" * validation.MAX_SPEC}
    problem = parse_spec(run_object(env=[{"id": "me/first"}, {"id": "me/second", "args": rows}]))
    assert isinstance(problem, Problem)
    assert problem.reason == "InvalidSpec"
    assert not lacks(problem.message, "`spec.env`", f"{validation.MAX_SPEC} bytes", "package")
    assert not parsed


@pytest.mark.parametrize("value", [json.loads("[" * 40 + "]" * 40), 1 << 2000, "\ud800"], ids=["deep", "long", "half"])
def test_values_that_pods_cannot_read_are_refused_for_new_runs(value: Any) -> None:
    run = run_object(env=[{"id": "me/first", "args": {"a": value}}])
    refused = parse_spec(run)
    assert isinstance(refused, Problem)
    assert refused.reason == "InvalidSpec"
    admitted = parse_spec({**run, "status": {"resolved": {"uid": "1"}}})
    assert not isinstance(admitted, Problem), "a run that an earlier version has admitted goes on"


def test_characters_of_several_bytes_count_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    # JSON with escapes would have 6 bytes for each.
    allowed = run_object(name="é" * (validation.MAX_SPEC // 3))
    assert "bytes" not in str(parse_spec(allowed))


def test_a_large_field_of_an_invalid_spec_is_not_parsed() -> None:
    spec = {"model": "a/b", "maxSteps": 7, "env": [{"id": "o/e", "args": {"text": "x" * MAX_KEPT}}], "unknown": 1}
    readable = readable_part({"spec": spec})
    assert (readable.model, readable.max_steps) == ("a/b", 7)
    assert [entry.id for entry in readable.env] == [entry["id"] for entry in UNREADABLE["env"]]
