"""What a user reads when the environment does not load."""

from pathlib import Path

import pytest
from rlrun.protocol.environment import EnvironmentConfig
from rlrun_environment.worker.loading import LoadError, load


def problem_of(settings: EnvironmentConfig, folder: Path):
    with pytest.raises(LoadError) as error:
        load(settings, folder)
    return error.value.problem


@pytest.mark.parametrize(
    ("code", "more", "expected"),
    [
        (
            "def load_environment():\n    x = {}\n    return x['words']",
            {},
            ["KeyError: 'words'", "in load_environment: r"],
        ),
        ("import sys\nsys.exit('no licence')", {}, ["SystemExit: no licence"]),
        ("import nowhere_at_all", {}, ["No module named 'nowhere_at_all'", "Push a wheel of 'nowhere_at_all' too"]),
        ("def load_environment(n): ...", {"args": {"m": 1}}, ["unexpected keyword argument 'm'", "env.args"]),
        (
            "import types\ndef load_environment():\n    return types.SimpleNamespace(env_id='', env_args=None)",
            {},
            ["returned SimpleNamespace, which is neither", "it has no method rollout"],
        ),
        ("x = 1", {}, ["does not have a 'load_environment' function"]),
        (
            "def load_environment():\n    return vf.SingleTurnEnv(dataset=lambda: 1 / 0)",
            {},
            ["ZeroDivisionError", "in <lambda>"],
        ),
    ],
)
def test_load_failures_have_a_reason_and_an_explanation(write_environment, tmp_path, code, more, expected):
    problem = problem_of(write_environment(code, **more), tmp_path)
    assert problem.reason == "EnvironmentLoadFailed"
    for words in expected:
        assert words in problem.message


def test_an_error_of_the_environments_own_code_says_nothing_of_its_arguments(write_environment, tmp_path):
    problem = problem_of(write_environment("def load_environment():\n    return 'a' in None"), tmp_path)
    assert "argument of type 'NoneType' is not" in problem.message
    assert "env.args" not in problem.message


def test_a_module_that_is_not_named_like_the_id(tmp_path):
    problem = problem_of(EnvironmentConfig(id="tester/not-there-7"), tmp_path)
    assert "The module's name must match the id" in problem.message


def test_a_folder_of_the_wheel_that_is_no_package_is_named(tmp_path):
    (tmp_path / "half_packed_7").mkdir()
    (tmp_path / "half_packed_7" / "half_packed_7.py").write_text("def load_environment(): ...")
    problem = problem_of(EnvironmentConfig(id="tester/half-packed-7"), tmp_path)
    assert "The wheel has the folder half_packed_7 without half_packed_7/__init__.py" in problem.message
    assert "include this file in the build" in problem.message


def test_all_missing_secrets_are_named(write_environment, tmp_path, monkeypatch):
    monkeypatch.setenv("HAVE_THIS", "1")
    code = "def load_environment():\n    vf.ensure_keys(['HAVE_THIS', 'JUDGE_KEY', 'TOOL_KEY'])"
    problem = problem_of(write_environment(code), tmp_path)
    assert problem.reason == "SecretsMissing"
    assert "JUDGE_KEY, TOOL_KEY" in problem.message
    assert "Store them in Secret env.tester.env-" in problem.message
    assert "or in a Secret that the run's envFrom lists" in problem.message
    assert "HAVE_THIS" not in problem.message


def test_an_empty_variable_counts_as_missing(write_environment, tmp_path, monkeypatch):
    # Environments get WANDB_API_KEY without a value, because the key is for the orchestrator.
    monkeypatch.setenv("WANDB_API_KEY", "")
    problem = problem_of(write_environment("def load_environment():\n    vf.ensure_keys(['WANDB_API_KEY'])"), tmp_path)
    assert problem.reason == "SecretsMissing"
    assert "WANDB_API_KEY" in problem.message


def test_taskset_and_harness_become_the_config(write_environment, tmp_path):
    settings = write_environment("", taskset={"split": "a"}, harness={"max_turns": 3}, args={"config": {"other": 1}})
    assert settings.load_args == {"config": {"other": 1, "taskset": {"split": "a"}, "harness": {"max_turns": 3}}}
    with pytest.raises(ValueError, match=r"args\.config"):
        _ = settings.model_copy(update={"args": {"config": {"taskset": {}}}}).load_args


def test_a_user_package_cannot_replace_the_images_own(write_environment, tmp_path):
    (tmp_path / "aiohttp.py").write_text("raise RuntimeError('replaced')")
    code = "import aiohttp\nassert aiohttp.ClientSession\n"
    code += "def load_environment():\n    return vf.SingleTurnEnv(dataset=rows('a'))"
    assert load(write_environment(code), tmp_path).train_examples == 1


@pytest.mark.proves("env.args", "env.taskset", "env.harness")
def test_args_taskset_and_harness_reach_load_environment(write_environment, tmp_path):
    code = """
    def load_environment(count, config):
        texts = [f"{config['taskset']['split']}-{config['harness']['max_turns']}"] * count
        return vf.SingleTurnEnv(dataset=rows(*texts))
    """
    settings = write_environment(code, taskset={"split": "easy"}, harness={"max_turns": 3}, args={"count": 2})
    loaded = load(settings, tmp_path)
    assert loaded.train_examples == 2
    assert loaded.train[1]["prompt"][0]["content"] == "easy-3"
    assert loaded.environment.env_args["count"] == 2


@pytest.mark.parametrize(
    ("requirement", "code"),
    [
        ("verifiers>=0.5", "from verifiers import Taskset"),
        ("verifiers>=0.5", "import verifiers.v1.nothing"),
        ('verifiers>=0.5; python_version >= "3.0"', "def load_environment():\n    return vf.nothing"),
    ],
)
def test_a_refusal_names_the_version_wanted_and_the_one_that_is_there(write_environment, tmp_path, requirement, code):
    settings = write_environment(code)
    info = tmp_path / f"{settings.package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    headers = f"Metadata-Version: 2.1\nName: {settings.package}\nVersion: 1.0\nRequires-Dist: {requirement}\n"
    (info / "METADATA").write_text(headers + 'Requires-Dist: tomli>=99; python_version < "3"\nRequires-Dist: odd =\n')
    message = problem_of(settings, tmp_path).message
    assert "The environment was written for verifiers >=0.5; this image has verifiers 0.3.1 and 0.4.0." in message
    assert "Push a wheel" not in message
    assert "tomli" not in message


def test_a_module_that_a_package_of_the_image_lacks_is_not_to_be_pushed(write_environment, tmp_path):
    message = problem_of(write_environment("import verifiers.v9.tasksets"), tmp_path).message
    assert "written for a different version of verifiers; this image has verifiers 0.3.1 and 0.4.0." in message
    assert "Push a wheel" not in message
