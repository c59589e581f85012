"""Fields of a run's environment in the configuration of verifiers.v1, and what is refused when it loads."""

import re

import pytest
from rlrun_environment.worker import loading
from rlrun_environment.worker.loading import load
from rlrun_environment.worker.user_code.load_error import LoadError
from rlrun_environment.worker.user_code.loaded import EnvironmentForm

WORDS = """
class WordsConfig(vf.TasksetConfig):
    count: int = 3
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()

class WordTask(vf.Task[vf.TaskData]):
    pass

class Words(vf.Taskset[WordTask, WordsConfig]):
    def load(self):
        return [WordTask(vf.TaskData(idx=i, prompt=f"word {i}"), self.config.task) for i in range(self.config.count)]
"""
ONE = WORDS + '\n__all__ = ["Words"]\n'
PLAIN = """
class Plain:
    dataset = [{"prompt": "word"}]

    async def rollout(self, example, *, base_url, api_key, model, sampling):
        return 1.0

def load_environment():
    return Plain()
"""
PAIR = (
    WORDS
    + """
class PairConfig(vf.EnvConfig):
    left: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, max_turns=8)
    right: vf.AgentConfig = vf.AgentConfig()
    rounds: int = 1

class Pair(vf.Env[PairConfig]):
    async def run(self, task, agents):
        pass

__all__ = ["Pair", "Words"]
"""
)


def problem_of(settings, folder):
    with pytest.raises(LoadError) as error:
        load(settings, folder)
    return error.value.problem


@pytest.mark.proves("env.args", "env.taskset", "env.harness")
def test_fields_reach_the_taskset_the_agent_and_its_harness(write_environment, tmp_path):
    harness = {"id": "bash", "edit": False, "max_turns": 4, "sampling": {"temperature": 0.5}}
    settings = write_environment(ONE, taskset={"count": 5}, harness=harness, args={"timeout": {"episode": 60.0}})
    loaded = load(settings, tmp_path)
    assert loaded.form is EnvironmentForm.taskset
    assert loaded.train_examples == loaded.eval_examples == 5
    assert loaded.train[4]["prompt"] == "word 4"
    config = loaded.environment.config
    assert (config.agent.harness.id, config.agent.harness.edit, config.agent.max_turns) == ("bash", False, 4)
    assert config.agent.sampling.temperature == 0.5
    assert config.agent.runtime.type == "subprocess"
    assert config.timeout.episode == 60.0


def test_harness_is_that_of_each_agent_and_args_have_the_agents_own(write_environment, tmp_path):
    args = {"rounds": 2, "right": {"harness": {"id": "null", "tool_timeout": 9.0}, "max_turns": 2}}
    settings = write_environment(PAIR, harness={"tool_timeout": 7.0, "max_output_tokens": 64}, args=args)
    config = load(settings, tmp_path).environment.config
    assert config.rounds == 2
    assert (config.left.harness.id, config.left.harness.tool_timeout, config.left.max_turns) == ("null", 7.0, 8)
    assert (config.right.harness.id, config.right.harness.tool_timeout, config.right.max_turns) == ("null", 9.0, 2)
    assert (config.left.max_output_tokens, config.right.max_output_tokens) == (64, 64)
    assert (config.left.runtime.type, config.right.runtime.type) == ("subprocess", "subprocess")


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (ONE, {"taskset": {"cuont": 1}}, "taskset.cuont: unknown field"),
        (ONE, {"taskset": {"count": "many"}}, "taskset.count: Input should be a valid integer"),
        (ONE, {"harness": {"id": "null", "edit": True}}, "harness.edit: unknown field"),
        (ONE, {"harness": {"max_turns": "many"}}, "harness.max_turns: Input should be a valid integer"),
        (ONE, {"args": {"rounds": 1}}, "args.rounds: unknown field"),
        (PAIR, {"args": {"left": {"turns": 1}}}, "args.left.turns: unknown field"),
        (PAIR, {"args": {"left": {"harness": {"nope": 1}}}}, "args.left.harness.nope: unknown field"),
        (PAIR, {"args": {"left": 3}}, "args.left: "),
    ],
)
def test_unknown_and_invalid_fields_are_named(write_environment, tmp_path, code, fields, expected):
    problem = problem_of(write_environment(code, **fields), tmp_path)
    assert problem.reason == "EnvironmentLoadFailed"
    assert expected in problem.message


@pytest.mark.parametrize(
    ("fields", "field", "name"),
    [
        ({"harness": {"runtime": {"type": "docker"}}}, "harness.runtime.type", "docker"),
        ({"args": {"agent": {"runtime": {"type": "prime"}}}}, "args.agent.runtime.type", "prime"),
        ({"args": {"agent": {"runtime": {"type": "modal"}}}}, "args.agent.runtime.type", "modal"),
        ({"args": {"agent": {"runtime": {"type": "e2b"}}}}, "args.agent.runtime.type", "e2b"),
        ({"taskset": {"tools": {"runtime": {"type": "apptainer"}}}}, "taskset.tools.runtime.type", "apptainer"),
    ],
)
def test_runtimes_with_containers_are_refused_by_name(write_environment, tmp_path, fields, field, name):
    problem = problem_of(write_environment(ONE, **fields), tmp_path)
    assert f"{field}: the runtime '{name}'" in problem.message
    assert "Use the runtime 'subprocess'" in problem.message


def test_a_runtime_that_the_package_pins_is_refused(write_environment, tmp_path):
    code = PAIR.replace("vf.AgentConfig()", 'vf.AgentConfig(runtime={"type": "docker"})')
    assert "args.right.runtime.type: the runtime 'docker'" in problem_of(write_environment(code), tmp_path).message
    settings = write_environment(code, args={"right": {"runtime": {"type": "subprocess"}}})
    assert load(settings, tmp_path).environment.config.right.runtime.type == "subprocess"


@pytest.mark.parametrize(
    ("code", "fields", "words"),
    [
        (ONE, {"harness": {"id": "codex"}}, "'codex' needs a container runtime"),
        (ONE.replace("    pass", "    NEEDS_CONTAINER = True"), {}, "WordTask needs a container runtime"),
        (ONE.replace("prompt=f", "image='debian', prompt=f"), {}, "requires image 'debian'"),
    ],
)
def test_harnesses_and_tasks_that_need_containers_are_refused(write_environment, tmp_path, code, fields, words):
    message = problem_of(write_environment(code, **fields), tmp_path).message
    assert words in message
    assert "'null' and 'bash'" in message


def test_another_model_needs_an_endpoint(write_environment, tmp_path):
    problem = problem_of(write_environment(ONE, args={"agent": {"model": "large"}}), tmp_path)
    assert "args.agent.model: the run serves only its own policy, not 'large'" in problem.message
    client = {"type": "eval", "base_url": "http://judge.example/v1", "api_key_var": "JUDGE_KEY"}
    settings = write_environment(ONE, args={"agent": {"model": "large", "client": client}})
    assert load(settings, tmp_path).environment.config.agent.client.base_url == "http://judge.example/v1"


def test_an_environment_without_a_taskset_names_one(write_environment, tmp_path):
    code = PAIR.replace('["Pair", "Words"]', '["Pair"]')
    assert "Set taskset.id" in problem_of(write_environment(code), tmp_path).message
    other = write_environment(ONE).package
    assert load(write_environment(code, taskset={"id": other, "count": 2}), tmp_path).train_examples == 2


def test_load_environment_is_not_needed_and_empty_tasksets_are_refused(write_environment, tmp_path):
    problem = problem_of(write_environment(ONE, taskset={"count": 0}), tmp_path)
    assert "has no examples" in problem.message


@pytest.mark.parametrize(
    ("has_environments", "form"), [(True, EnvironmentForm.plain), (False, EnvironmentForm.taskset)]
)
def test_a_package_of_both_forms_is_run_in_that_of_the_installed_version(
    write_environment, tmp_path, monkeypatch, has_environments, form
):
    monkeypatch.setattr(loading, "_has_environments", lambda: has_environments)
    code = f"{ONE}{PLAIN}"
    assert load(write_environment(code), tmp_path).form is form


RESERVED = """
class Data(vf.TaskData):
    {field}

class Config(vf.TaskConfig):
    {option}

class WordTask(vf.Task[Data, vf.State, Config]):
    @vf.{decorator}
    async def {function}(self, trace: vf.Trace) -> float:
        return 1.0

class Words(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        return [WordTask(Data(prompt="word"), Config())]

__all__ = ["Words"]
"""
FREE = {"field": "answer: str = 'x'", "option": "level: int = 1", "decorator": "reward", "function": "right"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"function": "score"}, "the @vf.reward function score of WordTask replaces the method of vf.Task"),
        ({"function": "setup", "decorator": "metric"}, "the @vf.metric function setup of WordTask"),
        ({"field": "timeout: float = 5.0"}, "the field timeout of Data redefines vf.TaskData.timeout with a"),
        ({"field": "resources: list[str] = ['a.pdf']"}, "the field resources of Data"),
        ({"field": "idx: str = 'q17'"}, "the field idx of Data .* verifiers sets it to the task's position"),
        ({"field": "image: dict[str, int] = {'width': 3}"}, "the field image of Data"),
        ({"option": "rewards: list[str] = ['exact']"}, "the field rewards of Config redefines vf.TaskConfig.rewards"),
    ],
)
def test_a_name_that_verifiers_uses_for_something_else_is_refused(write_environment, tmp_path, changes, words):
    problem = problem_of(write_environment(RESERVED.format(**{**FREE, **changes})), tmp_path)
    assert problem.reason == "EnvironmentLoadFailed"
    assert re.search(words, problem.message)
    assert "Rename them" in problem.message


@pytest.mark.parametrize(
    "changes",
    [
        {},
        # Labels, which verifiers only shows, and narrower types.
        {"field": "id: int = 17"},
        {"field": "idx: int = 17"},
        {"field": "system_prompt: str = 'Be brief.'"},
    ],
)
def test_names_that_fit_verifiers_are_allowed(write_environment, tmp_path, changes):
    assert load(write_environment(RESERVED.format(**{**FREE, **changes})), tmp_path).train_examples == 1


def test_a_picture_in_the_field_of_a_containers_image_is_told_apart(write_environment, tmp_path):
    code = RESERVED.format(**{**FREE, "field": "image: str = 'cat.png'"})
    assert "use another name for pictures" in problem_of(write_environment(code), tmp_path).message
