"""The operator and the environment server agree on `RLRUN_ENVIRONMENT`."""

import subprocess

import pytest
from pydantic import TypeAdapter
from rlrun.api.base.names import ObjectName
from rlrun.api.run_sections.environments import TrainEnvironment
from rlrun.protocol.environment import MAX_ARGUMENT_BYTES, VARIABLE, EnvironmentConfig, GroupResult, linked_secret
from rlrun_operator.resources.environment import environment_variable


def entry(**more: object) -> TrainEnvironment:
    return TrainEnvironment.model_validate({"id": "o/my-env", **more})


def test_the_variables_text_is_the_same_in_every_version() -> None:
    # A changed text restarts the environments of running runs.
    text = environment_variable(entry(args={"ü": None, "b": [1.0, {"camelCase": True}]}), 2, "http://g:8000")
    assert text == (
        '{"args": {"b": [1.0, {"camelCase": true}], "\\u00fc": null}, "id": "o/my-env", "name": "my-env", '
        '"packagesUrl": "http://g:8000", "workers": 2}'
    )
    text = environment_variable(
        entry(name="n", version="1!2.0+l", weight=2.0, taskset={"t": None}, harness={"h": 1}), 64, "http://g:8000"
    )
    assert text == (
        '{"args": {}, "harness": {"h": 1}, "id": "o/my-env@1!2.0+l", "name": "n", "packagesUrl": "http://g:8000", '
        '"taskset": {"t": null}, "workers": 64}'
    )


def test_environment_config_survives_its_variable() -> None:
    args = {"camelCase": 1, "nothing": None}
    text = environment_variable(entry(version="0.2", args=args, taskset={"t": 1}), 3, "http://g:8000")
    config = EnvironmentConfig.from_variables({VARIABLE: text})
    assert (config.owner, config.package, config.version, config.workers) == ("o", "my-env", "0.2", 3)
    assert config.load_args == {**args, "config": {"taskset": {"t": 1}}}
    assert config.to_variable() == text


def test_unknown_fields_are_ignored_because_versions_may_differ() -> None:
    assert EnvironmentConfig.from_variables({VARIABLE: '{"id": "a/b", "added": 1}'}).id == "a/b"


def test_results_of_environments_of_other_versions_are_read() -> None:
    older = {"groupId": "g", "seconds": 0.5, "rollouts": [{"rolloutId": "r", "reward": 1.0, "completion": "text"}]}
    found = GroupResult.model_validate(older)
    assert (found.example, found.rollouts[0].rewards, found.rollouts[0].prompt) == (None, {}, None)
    rollout = older["rollouts"][0] | {"added": 1, "rewards": {"match": {"value": 1, "weight": 1, "added": 1}}}  # type: ignore[index]
    newer = older | {"added": 1, "rollouts": [rollout], "example": {"prompt": "p", "added": 1}}
    assert GroupResult.model_validate(newer).rollouts[0].rewards["match"].value == 1.0


@pytest.mark.slow
def test_the_largest_arguments_fit_into_a_variable_of_a_process() -> None:
    def start(size: int) -> None:
        args = {"rows": "x" * (size - len('{"rows": ""}'))}
        longest = entry(id=f"o/{'e' * 126}", name="n" * 63, version="1" * 64, args=args)
        text = environment_variable(longest, 64, f"http://{'r' * 53}.{'n' * 63}.svc:8000")
        subprocess.run(["/bin/true"], env={VARIABLE: text}, check=True)

    start(MAX_ARGUMENT_BYTES)
    with pytest.raises(OSError, match="Argument list too long"):
        start(MAX_ARGUMENT_BYTES + 1024)


LINKED = [
    ("me/my-env", "env.me.my-env"),
    ("team-b/x", "env.team-b.x"),
]


@pytest.mark.parametrize(("environment_id", "name"), LINKED)
def test_the_secret_of_an_environment_has_its_name(environment_id: str, name: str) -> None:
    assert linked_secret(environment_id) == name


@pytest.mark.parametrize("owner", ["a", "a.b"])
def test_all_spellings_of_an_environment_have_one_secret(owner: str) -> None:
    assert len({linked_secret(f"{owner}/{name}") for name in ("b-c", "b.c", "b_c", "B-C", "b-_c")}) == 1


@pytest.mark.parametrize(
    ("environment_id", "package"),
    [("me/Pi.Agent_Env@1.0", "pi-agent-env"), ("me/pi-agent-env", "pi-agent-env"), ("Pi_Agent", "Pi_Agent")],
)
def test_the_name_of_a_pushed_package_is_normalised(environment_id: str, package: str) -> None:
    """One without an owner is a module of the image, which has the name that is written."""
    assert EnvironmentConfig(id=environment_id).package == package


def test_no_two_environments_have_one_secret() -> None:
    ids = ["a.b/c", "a-b/c", "a_b/c", "a/b-c", "A/b-c", "a/bc", "a/b", "env/a.b"]
    names = {linked_secret(environment_id) for environment_id in ids}
    assert len(names) == len(ids)
    adapter: TypeAdapter[str] = TypeAdapter(ObjectName)
    assert all(adapter.validate_python(name) for name in names)
