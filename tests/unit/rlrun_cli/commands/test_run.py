import base64
from pathlib import Path

import pytest
import yaml
from rlrun.api.run import RLRun
from rlrun.constants import USER_ANNOTATION
from rlrun.kube.errors import TIMEOUT, UNREACHABLE, ApiError
from rlrun.kube.objects import Obj

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster, fail_creations
from tests.support.source_tree import ROOT
from tests.unit.rlrun_cli.commands.test_follow import run_object

TOML = """
name = "Reverse Text!"
model = "me/tiny"
max_steps = 4
batch_size = 8
rollouts_per_example = 4
[sampling]
max_tokens = 16
[[env]]
id = "me/reverse"
args = { split = "train" }
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    file = tmp_path / "rl.toml"
    file.write_text(TOML)
    return file


def created(api: FakeCluster) -> Obj:
    (item,) = api.all("RLRun")
    return item


def variables(api: FakeCluster, name: str) -> dict[str, str]:
    """The variables in a Secret."""
    found = api.find("Secret", name)
    assert found is not None
    return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}


@pytest.mark.proves("name")
def test_toml_becomes_a_run(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    answer = rlrun("run", toml)
    assert answer.code == 0
    item = created(api)
    name = item["metadata"]["name"]
    assert answer.out == f"rlruns.rlrun.dev/{name} created\n"
    assert name.startswith("reverse-text-")
    assert item["spec"] == {
        "name": "Reverse Text!",
        "model": "me/tiny",
        "maxSteps": 4,
        "batchSize": 8,
        "rolloutsPerExample": 4,
        "sampling": {"maxTokens": 16},
        "env": [{"id": "me/reverse", "args": {"split": "train"}}],
    }
    assert api.all("Secret") == []


def test_the_run_names_its_user_for_usage(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    api.user = "ann@corp"
    assert rlrun("run", toml).code == 0
    assert created(api)["metadata"]["annotations"] == {USER_ANNOTATION: "ann@corp"}


def test_a_user_that_the_file_names_stays(rlrun: Rlrun, api: FakeCluster, toml: Path, tmp_path: Path) -> None:
    """A pipeline that may impersonate names the person for whom it works."""
    api.user = "pipeline"
    made = yaml.safe_load(rlrun("run", toml, "--dry-run").out)
    made["metadata"]["annotations"] = {USER_ANNOTATION: "ann", "team": "a"}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(made))
    assert rlrun("run", file).code == 0
    assert created(api)["metadata"]["annotations"] == {USER_ANNOTATION: "ann", "team": "a"}


def test_a_run_is_created_although_the_api_server_does_not_name_the_user(
    rlrun: Rlrun, api: FakeCluster, toml: Path
) -> None:
    api.answers["create SelfSubjectReview *"] = [ApiError(403, "Forbidden", "selfsubjectreviews is forbidden")]
    assert rlrun("run", toml).code == 0
    assert USER_ANNOTATION not in (created(api)["metadata"].get("annotations") or {})


def test_each_invocation_creates_a_new_run(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    assert rlrun("run", toml).code == rlrun("run", toml).code == 0
    assert len(api.all("RLRun")) == 2


def test_the_name_option_sets_the_name(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    assert rlrun("run", toml, "--name", "mine").out == "rlruns.rlrun.dev/mine created\n"
    again = rlrun("run", toml, "--name", "mine")
    assert again.code == 1
    assert "already exists" in again.err
    for bad in ("Mine", "1st", "x" * 41, "-x"):
        assert rlrun("run", toml, f"--name={bad}").code == 2


def test_all_problems_of_a_toml_at_once(rlrun: Rlrun, api: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(
        'model = "a/b"\nmax_steps = "many"\nbatchsize = 8\n'
        '[sampling]\nmax_tokens = 0\ntemperature = -1\n[[env]]\nname = "x"\n'
    )
    answer = rlrun("run", file)
    assert answer.code == 2
    places = ("max_steps", "batchsize", "sampling.max_tokens", "sampling.temperature", "env[0].id")
    for line, place in zip((2, 3, 5, 6, 7), places, strict=True):
        assert f"  - line {line}: {place}: " in answer.err
    assert "did you mean batch_size?" in answer.err
    assert api.calls == []


def test_all_problems_of_a_yaml_at_once(rlrun: Rlrun, api: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    spec = {"model": "a/b", "maxSteps": "many", "batch_size": 8, "env": [], "sampling": {"maxTokens": 1}}
    file.write_text(yaml.safe_dump({"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLRun", "spec": spec}))
    answer = rlrun("run", file)
    assert answer.code == 2
    for line, place in ((6, "spec.maxSteps"), (4, "spec.batch_size"), (5, "spec.env")):
        assert f"  - line {line}: {place}: " in answer.err
    assert "did you mean batchSize?" in answer.err
    assert api.calls == []


def test_a_repeated_key_of_a_yaml_is_a_problem(rlrun: Rlrun, api: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("kind: RLRun\nspec:\n  model: a/b\n  model: a/c\n")
    answer = rlrun("run", file)
    assert answer.code == 2
    assert "spec.model: is set twice, the second time on line 4" in answer.err


@pytest.mark.parametrize("name", ["reverse-text.toml", "reverse-text.yaml"])
def test_standard_input_is_read_in_both_formats(rlrun: Rlrun, api: FakeCluster, name: str) -> None:
    answer = rlrun("run", "-", input=(ROOT / "examples" / name).read_text(encoding="utf-8"))
    assert answer.code == 0, answer.err
    (item,) = api.all("RLRun")
    assert item["metadata"]["name"].startswith("reverse-text")
    assert item["spec"]["sampling"]["maxTokens"] == 24


@pytest.mark.parametrize("text", ["model = 1", "kind: RLRun\nspec: {model: 1}\n"])
def test_problems_of_standard_input_name_it(rlrun: Rlrun, api: FakeCluster, text: str) -> None:
    answer = rlrun("run", "-", input=text)
    assert answer.code == 2
    assert "standard input has" in answer.err
    assert api.calls == []


def test_variables_are_stored_in_a_secret_owned_by_the_run(rlrun: Rlrun, api: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    file.write_text('env_file = ["inner.env"]\n' + TOML)
    (tmp_path / "inner.env").write_text("A=inner\nB=inner\nC=inner\nD=inner\n")
    (tmp_path / "outer.env").write_text("B=outer\nC=outer\n")
    answer = rlrun(
        "run", file, "--name", "first", "--env-file", tmp_path / "outer.env", "-e", "C=hunter2", "-e", "KEY",
        env={"KEY": "hunter3"},
    )  # fmt: skip
    assert answer.code == 0
    assert variables(api, "first-env") == {
        "A": "inner",
        "B": "outer",
        "C": "hunter2",
        "D": "inner",
        "KEY": "hunter3",
    }
    (secret,) = api.all("Secret")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == created(api)["metadata"]["uid"]
    assert created(api)["spec"]["envFrom"] == [{"secretRef": {"name": "first-env"}}]
    assert api.calls[1:] == ["create Secret team/first-env", "create RLRun team/first", "change Secret team/first-env"]
    assert "hunter" not in answer.out + answer.err


def test_the_secret_is_deleted_when_the_run_is_rejected(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    causes = [{"field": "spec.batchSize", "message": "no"}]
    api.answers["create RLRun team/first"] = [ApiError(422, "Invalid", "no", details={"causes": causes})]
    answer = rlrun("run", toml, "--name", "first", "-e", "A=hunter2")
    assert answer.code == 1
    assert "  - spec.batchSize: no" in answer.err
    assert api.all("Secret") == []
    assert "hunter2" not in answer.out + answer.err


@pytest.mark.parametrize(
    "failure", [ApiError(0, TIMEOUT, "no answer"), ApiError(504, TIMEOUT, "etcd"), KeyboardInterrupt()]
)
def test_the_secret_of_a_run_that_was_stored_without_an_answer_stays(
    rlrun: Rlrun, api: FakeCluster, toml: Path, failure: BaseException
) -> None:
    fail_creations(api, "RLRun", failure)
    answer = rlrun("run", toml, "--name", "first", "-e", "A=hunter2")
    assert answer.code != 0
    assert variables(api, "first-env") == {"A": "hunter2"}
    (secret,) = api.all("Secret")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == created(api)["metadata"]["uid"]
    assert "rlrun follow first" in answer.err


def test_the_secret_of_a_run_that_may_have_been_stored_stays(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    silence = ApiError(0, UNREACHABLE, "no route")
    api.answers |= {"create RLRun team/first": [silence], "get RLRun team/first": [silence]}
    answer = rlrun("run", toml, "--name", "first", "-e", "A=hunter2")
    assert "cannot create RLRun team/first" in answer.err
    assert "first-env was kept" in answer.err
    assert variables(api, "first-env") == {"A": "hunter2"}


def test_the_secret_is_deleted_if_the_run_was_not_stored(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    api.answers["create RLRun team/first"] = [ApiError(0, TIMEOUT, "no answer")]
    assert rlrun("run", toml, "--name", "first", "-e", "A=hunter2").code == 1
    assert api.all("Secret") == []


def test_an_existing_secret_is_not_changed(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    metadata = {"name": "first-env", "namespace": "team"}
    api.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"A": "eA=="}})
    answer = rlrun("run", toml, "--name", "first", "-e", "A=1")
    assert answer.code == 1
    assert "first-env already exists" in answer.err
    assert variables(api, "first-env") == {"A": "x"}
    assert api.all("RLRun") == []


def test_a_missing_variable_or_file_is_reported_before_any_request(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    answer = rlrun("run", toml, "-e", "NOT_SET", "--env-file", "nowhere.env")
    assert answer.code == 2
    assert "NOT_SET" in answer.err
    assert "nowhere.env" in answer.err
    assert api.calls == []


def test_dry_run_prints_a_valid_object_without_any_request(
    rlrun: Rlrun, api: FakeCluster, toml: Path, chosen: list[object]
) -> None:
    answer = rlrun("run", toml, "--dry-run", "-n", "lab", "-e", "TOKEN=hunter2")
    assert answer.code == 0
    found = yaml.safe_load(answer.out)
    assert found["metadata"]["namespace"] == "lab"
    assert RLRun.from_object(found).spec.max_steps == 4
    assert found["spec"]["envFrom"] == [{"secretRef": {"name": found["metadata"]["name"] + "-env"}}]
    assert "TOKEN" in answer.err
    assert "hunter2" not in answer.out + answer.err
    assert chosen == []


NAMESPACE_RULE = "use at most 63 lower-case letters, digits and '-'; begin and end with a letter or digit"


@pytest.mark.parametrize("namespace", ["Team", "a.b", "-a", "a" * 64])
def test_an_invalid_namespace_is_refused(rlrun: Rlrun, toml: Path, chosen: list[object], namespace: str) -> None:
    for words in (("run", toml, "--dry-run", f"-n{namespace}"), (f"-n{namespace}", "run", toml, "--dry-run")):
        answer = rlrun(*words)
        assert (answer.code, answer.out) == (2, "")
        assert f"--namespace: {namespace!r} is not a valid namespace name" in answer.err
        assert NAMESPACE_RULE in answer.err
    assert chosen == []


def test_an_invalid_namespace_in_the_file_is_refused(rlrun: Rlrun, toml: Path, tmp_path: Path) -> None:
    run = yaml.safe_load(rlrun("run", toml, "--dry-run").out)
    run["metadata"]["namespace"] = "Team"
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run))
    answer = rlrun("run", file, "--dry-run")
    assert (answer.code, answer.out) == (2, "")
    assert "metadata.namespace: 'Team' is not a valid namespace name" in answer.err
    assert NAMESPACE_RULE in answer.err


def test_the_key_of_weights_and_biases_comes_from_the_shell(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    text = toml.read_text()
    assert "hunter2" not in rlrun("run", toml, "--dry-run", env={"WANDB_API_KEY": "hunter2"}).err
    toml.write_text(f'{text}\n[wandb]\nproject = "p"\n')
    without = rlrun("run", toml, "--dry-run", env={"WANDB_API_KEY": None})
    assert (without.code, "Warning: the run has [wandb] but no WANDB_API_KEY" in without.err) == (0, True)
    for words, shell in (
        ((), "hunter2"),
        (("--wandb-api-key", "hunter2"), None),
        (("-e", "WANDB_API_KEY=hunter2"), "3"),
    ):
        answer = rlrun("run", toml, *words, env={"WANDB_API_KEY": shell})
        assert "Warning" not in answer.err
        assert "hunter2" not in answer.out + answer.err
        name = answer.out.split()[0].partition("/")[2]
        assert variables(api, f"{name}-env") == {"WANDB_API_KEY": "hunter2"}
    toml.write_text(f'env_from = [{{ secret_ref = {{ name = "mine" }} }}]\n{text}\n[wandb]\nproject = "p"\n')
    assert "Warning" not in rlrun("run", toml, "--dry-run", env={"WANDB_API_KEY": None}).err
    name = rlrun("run", toml, env={"WANDB_API_KEY": "3"}).out.split()[0].partition("/")[2]
    assert api.find("Secret", f"{name}-env") is None, "the key may be in the run's own Secret"
    name = rlrun("run", toml, "--wandb-api-key", "hunter2").out.split()[0].partition("/")[2]
    assert variables(api, f"{name}-env") == {"WANDB_API_KEY": "hunter2"}, "an option is never dropped"


def test_validate_lists_problems_and_notes_without_a_cluster(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    assert rlrun("validate", toml, "-n", "lab").out == f"{toml} is valid\n"
    toml.write_text(toml.read_text().replace("max_steps", "max_step"))
    answer = rlrun("validate", toml)
    assert (answer.code, "did you mean max_steps" in answer.err, api.calls) == (2, True, [])


def test_yaml_keeps_its_name_labels_and_references(rlrun: Rlrun, api: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    body = yaml.safe_load(
        """
        apiVersion: rlrun.dev/v1alpha1
        kind: RLRun
        metadata: {name: mine, namespace: lab, labels: {a: b}}
        spec:
          model: me/tiny
          sampling: {maxTokens: 4}
          env: [{id: me/reverse}]
          envFrom: [{secretRef: {name: other}}]
        """
    )
    file.write_text(yaml.safe_dump(body))
    assert rlrun("run", file, "-e", "A=1").code == 0
    item = created(api)
    assert item["metadata"]["labels"] == {"a": "b"}
    assert item["metadata"]["namespace"] == "lab"
    assert [e["secretRef"]["name"] for e in item["spec"]["envFrom"]] == ["other", "mine-env"]
    assert rlrun("run", file, "-n", "elsewhere").code == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.txt", "", ".toml, .yaml or .json"),
        ("x.toml", "model = ", "TOML"),
        ("x.yaml", "a: [", "not valid YAML"),
        ("x.yaml", "", "is empty"),
        ("x.yaml", "kind: RLRun\n---\nkind: RLRun\n", "2 documents"),
        ("x.yaml", "kind: Pod\n", "has kind Pod, not RLRun"),
        ("x.yaml", "spec: {}\n", "has no kind; expected RLRun"),
    ],
)
def test_a_file_that_is_not_a_run_is_rejected(rlrun: Rlrun, tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    answer = rlrun("run", tmp_path / name)
    assert answer.code == 2
    assert message in answer.err


def test_a_file_is_named_as_for_hosted_clients(rlrun: Rlrun, toml: Path) -> None:
    assert rlrun("run", f"@{toml}", "--dry-run").code == 0
    answer = rlrun("run", "@none.toml")
    assert (answer.code, answer.out) == (2, "")
    assert "Error: none.toml cannot be read" in answer.err


@pytest.mark.parametrize(
    ("text", "line"),
    [("spec:\n  env: [1\n  b: 2\n", 3), ("kind: RLRun\nspec: @\n", 2), ('{"kind": "RLRun",\n "spec": {', 2)],
)
def test_a_syntax_error_of_yaml_has_one_line(rlrun: Rlrun, tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    answer = rlrun("run", file)
    assert answer.code == 2
    error, hint = answer.err.splitlines()
    assert error.startswith(f"Error: {file} is not valid YAML: line {line}: ")
    assert hint.startswith("Next: ")


@pytest.mark.parametrize(("text", "found"), [("", "is empty"), ("- 1\n", "is a list"), ("hello\n", "is plain text")])
def test_a_yaml_without_an_object_says_what_it_is(rlrun: Rlrun, tmp_path: Path, text: str, found: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    answer = rlrun("run", file)
    assert answer.code == 2
    assert f"{file} {found}, not an RLRun" in answer.err
    assert "multiple objects" not in answer.err


def test_a_missing_file_is_rejected(rlrun: Rlrun) -> None:
    answer = rlrun("run", "nowhere.toml")
    assert answer.code == 2
    assert "rlrun init" in answer.err


def test_run_and_follow(rlrun: Rlrun, api: FakeCluster, toml: Path) -> None:
    api.answers["get RLRun team/first"] = [run_object("Running", 1, 0.1), run_object("Completed", 4, 0.9)]
    assert rlrun("run", toml, "--name", "first", "--follow").code == 0
    api.answers["get RLRun team/second"] = [run_object("Failed", 1, 0.1)]
    assert rlrun("run", toml, "--name", "second", "--follow").code == 1


@pytest.mark.parametrize("option", ["yaml", "json"])
def test_output_is_the_created_object(rlrun: Rlrun, api: FakeCluster, toml: Path, option: str) -> None:
    answer = rlrun("run", toml, "--name", "first", "-o", option)
    assert yaml.safe_load(answer.out)["metadata"]["uid"] == created(api)["metadata"]["uid"]


def test_the_template_is_a_valid_run(rlrun: Rlrun, api: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    rlrun("init", file)
    assert rlrun("run", file).code == 0
    # Every commented line must be valid, too.
    lines = file.read_text().splitlines()
    on = [line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in lines]
    full = tmp_path / "full.toml"
    full.write_text("\n".join(line for line in on if not line.startswith("env_file")))
    answer = rlrun("run", full)
    assert answer.code == 0, answer.err
    item = api.find("RLRun", answer.out.removeprefix("rlruns.rlrun.dev/").removesuffix(" created\n"))
    assert item is not None
    assert item["spec"]["eval"]["env"][0]["args"] == {"split": "test"}
