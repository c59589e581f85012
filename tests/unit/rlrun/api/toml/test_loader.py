"""Conversion between TOML and RLRunSpec, and the problems reported for invalid files."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.loader import RunToml, TomlError, dumps, load, loads
from rlrun.api.toml.writer import write_toml

from tests.fixtures.specs import cases

MINIMAL = """
model = "acme/tiny"

[sampling]
max_tokens = 64

[[env]]
id = "acme/reverse-text"
"""

FULL = """
name = "everything"
model = "acme/tiny"
max_steps = 500
batch_size = 64
rollouts_per_example = 16
trajectory_strategy = "branching"
learning_rate = 5e-6
lora_alpha = 32
oversampling_factor = 1.5
max_async_level = 4
checkpoint_id = "team-b/earlier-step-100"
env_file = ["secrets.env", "more.env"]

[sampling]
max_tokens = 1024
temperature = 0.7
top_p = 0.9
stop = ["<|im_end|>"]

[[env]]
id = "acme/math@0.3.1"
weight = 2
args = { split = "train", levels = [1, 2], nested = { deep = true } }

[[env]]
id = "acme/wiki"
name = "wiki search"
weight = 0.5

[env.taskset]
num_examples = 1000

[env.harness]
max_turns = 8

[eval]
interval = 50
num_examples = -1
rollouts_per_example = 2
eval_base_model = false

[[eval.env]]
id = "acme/math"
num_examples = 30

[eval.env.args]
split = "test"

[val]
num_examples = 32
interval = 10

[buffer]
online_difficulty_filtering = true
easy_threshold = 0.9
hard_threshold = 0.1
easy_fraction = 0.1
seed = 42

[wandb]
project = "p"
entity = "e"
name = "n"

[checkpoints]
interval = 50
keep_cloud = -1

[adapters]
interval = 100
keep_last = 1

[infrastructure]
compute_size = "L"
"""


def problems_in(text: str) -> dict[str, str]:
    with pytest.raises(TomlError) as caught:
        loads(text)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_minimal() -> None:
    run = loads(MINIMAL)
    assert run == RunToml(
        RLRunSpec.model_validate(
            {"model": "acme/tiny", "sampling": {"maxTokens": 64}, "env": [{"id": "acme/reverse-text"}]}
        )
    )
    assert (run.spec.max_steps, run.spec.batch_size, run.spec.learning_rate) == (100, 128, 1e-4)


def test_full() -> None:
    run = loads(FULL)
    spec = run.spec
    assert run.env_files == ["secrets.env", "more.env"]
    assert (spec.env[0].id, spec.env[0].version) == ("acme/math", "0.3.1")
    assert spec.env[0].args == {"split": "train", "levels": [1, 2], "nested": {"deep": True}}
    assert (spec.env[1].taskset, spec.env[1].harness) == ({"num_examples": 1000}, {"max_turns": 8})
    assert spec.eval is not None
    assert spec.eval.env[0].args == {"split": "test"}
    assert spec.infrastructure.compute_size == "L"
    assert spec.checkpoints.keep_cloud == -1
    assert spec.env[1].effective_name == "wiki search"


@pytest.mark.parametrize("text", [MINIMAL, FULL], ids=["minimal", "full"])
def test_round_trip_through_toml(text: str) -> None:
    run = loads(text)
    again = dumps(run.spec, run.env_files)
    assert loads(again) == run
    assert dumps(loads(again).spec, run.env_files) == again


RUN_FIXTURES = [case for case in cases.valid() if case.object["kind"] == "RLRun" and case.name != "run-full"]


@pytest.mark.parametrize("case", RUN_FIXTURES, ids=lambda c: c.name)
def test_every_valid_fixture_survives_toml(case: cases.Case) -> None:
    spec = RLRunSpec.model_validate(case.object["spec"])
    assert loads(dumps(spec)).spec == spec


def test_a_null_in_args_cannot_become_toml() -> None:
    spec = loads(MINIMAL).spec
    spec.env[0].args["limits"] = [1, None]
    with pytest.raises(TomlError, match=r"env\[0\]\.args\.limits\[1\]: is null"):
        dumps(spec)


def test_all_problems_at_once_under_their_toml_paths() -> None:
    found = problems_in("""
model = "a/b/c"
batch_size = 100
max_async_level = 33
learning_rate = "fast"
env_file = "secrets.env"

[sampling]
max_tokens = "64"
temperature = -1

[[env]]
id = "no-owner"

[[env]]
name = "second"

[checkpoints]
keep_cloud = 0

[[eval.env]]
id = "acme/x"
num_examples = 0
""")
    assert set(found) == {
        "model",
        "batch_size",
        "max_async_level",
        "learning_rate",
        "env_file",
        "sampling.max_tokens",
        "sampling.temperature",
        "env[0].id",
        "env[1].id",
        "checkpoints.keep_cloud",
        "eval.env[0].num_examples",
    }
    assert found["sampling.max_tokens"] == "must be a valid integer, not '64'"
    assert found["max_async_level"] == "must be less than or equal to 32, not 33"
    assert found["batch_size"].startswith("batch_size must be a multiple of rollouts_per_example")
    assert found["env[1].id"] == "is required"


@pytest.mark.parametrize("text", ['model = "a/b"', 'model = "a/b"\nenv = []'], ids=["missing", "empty"])
def test_a_file_without_environments_is_told_to_add_one(text: str) -> None:
    assert problems_in(text) == {"env": "env is empty: add an entry for each environment to train on"}


@pytest.mark.parametrize(
    ("line", "path", "meant"),
    [
        ("max_step = 3", "max_step", "max_steps"),
        ("maxSteps = 3", "maxSteps", "max_steps"),
        ("enviroment = []", "enviroment", "env"),
        ("env_fles = []", "env_fles", "env_files"),
        ("[bufer]", "bufer", "buffer"),
        ("[buffer]\nenv_ratio = [1]", "buffer.env_ratio", "env_ratios"),
        ("[adapters]\nkeep_cloud = 3", "adapters.keep_cloud", None),
        ("[lora]\nranks = 3", "lora.ranks", None),
    ],
)
def test_unknown_keys(line: str, path: str, meant: str | None) -> None:
    # A key of the top level has to stand before the first table.
    text = MINIMAL + line if line.startswith("[") else f"{line}\n{MINIMAL}"
    message = problems_in(text)[path]
    assert message.startswith("unknown field")
    if meant and meant != "env":
        assert f"did you mean {meant}?" in message


def test_syntax_errors_say_where() -> None:
    assert "line 2" in problems_in('model = "x"\nbatch_size = = 3')["TOML"]


def test_args_without_a_json_representation_are_refused() -> None:
    found = problems_in(MINIMAL + "args = { since = 2026-01-01, limit = inf, deep = { at = 10:00:00 } }")
    assert set(found) == {"env[0].args.since", "env[0].args.limit", "env[0].args.deep.at"}
    assert "as a string" in found["env[0].args.since"]


def test_versions_in_environment_ids() -> None:
    found = problems_in(MINIMAL.replace("reverse-text", "reverse-text@1.0") + 'version = "2.0"')
    assert found == {
        "env[0].id": "id and version name different versions: remove one of them",
        "env[0].version": "version and id name different versions: remove one of them",
    }
    assert loads(MINIMAL.replace("reverse-text", "reverse-text@")).spec.env[0].version is None
    evaluation = loads(MINIMAL + '[[eval.env]]\nid = "acme/x@1.0"').spec.eval
    assert evaluation is not None
    assert evaluation.env[0].version == "1.0"


def test_keys_of_self_managed_trainers() -> None:
    spec = loads(
        "gradient_accumulation_steps = 4\nwarmup_steps = 100\n"
        + MINIMAL
        + """
[lora]
enabled = true
r = 64
alpha = 16
dropout = 0.05
target_modules = ["q_proj", "v_proj"]

[difficulty_filter]
enabled = true
max_reward = 0.95
min_reward = 0.05
min_reward_variance = 0.1

[kl_penalty]
enabled = true
target_kl = 0.01
beta = 0.1
"""
    ).spec
    assert (spec.gradient_accumulation_steps, spec.warmup_steps) == (4, 100)
    assert (spec.lora_alpha, spec.lora.rank, spec.lora.dropout) == (16, 64, 0.05)
    assert spec.lora.target_modules == ["q_proj", "v_proj"]
    assert spec.difficulty_filter is not None
    assert (spec.difficulty_filter.min_reward, spec.difficulty_filter.min_reward_variance) == (0.05, 0.1)
    assert spec.kl_penalty is not None
    assert (spec.kl_penalty.target_kl, spec.kl_penalty.beta) == (0.01, 0.1)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("warmup_steps = -1\n" + MINIMAL, "warmup_steps"),
        ("gradient_accumulation_steps = 0\n" + MINIMAL, "gradient_accumulation_steps"),
        (MINIMAL + "[lora]\nenabled = false\nr = 8", "lora.enabled"),
        (MINIMAL + "[lora]\nr = 0", "lora.r"),
        (MINIMAL + "[lora]\nr = 8\nrank = 8", "lora.r"),
        (MINIMAL + '[lora]\ntarget_modules = ["q_proj", "q_proj"]', "lora.target_modules"),
        (MINIMAL + "[lora]\nalpha = -1", "lora.alpha"),
        ("lora_alpha = 3\n" + MINIMAL + "[lora]\nalpha = 3", "lora.alpha"),
        ("lora = 3\n" + MINIMAL, "lora"),
        (MINIMAL + "[difficulty_filter]\nmin_reward = 0.9\nmax_reward = 0.1", "difficulty_filter.min_reward"),
        (MINIMAL + "[difficulty_filter]\nmin_reward_variance = -1", "difficulty_filter.min_reward_variance"),
        (MINIMAL + "[kl_penalty]\nbeta = 0", "kl_penalty.beta"),
        (MINIMAL + '[algorithm]\nname = "distillation"', "algorithm.teacher"),
        (MINIMAL + '[algorithm]\nname = "ppo"', "algorithm.name"),
        (MINIMAL + "[algorithm]\nsft_steps = 101", "algorithm.sft_steps"),
        (MINIMAL + "[buffer]\nskip_verification = true", "buffer.skip_verification"),
        (MINIMAL + "[loss]\nratio_low = 2", "loss.ratio_low"),
        (MINIMAL + '[loss]\nratio_limit = "drop"', "loss.ratio_limit"),
    ],
)
def test_wrong_settings_of_the_trainer_are_refused(text: str, path: str) -> None:
    assert list(problems_in(text)) == [path]


def test_load_reads_files_with_a_byte_order_mark_and_refuses_other_encodings(tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    file.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load(file) == loads(MINIMAL)
    file.write_bytes(MINIMAL.encode() + b'name = "\xe9"')
    with pytest.raises(TomlError, match="UTF-8"):
        load(file)


LEAVES = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
TREES = st.recursive(
    LEAVES, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(), t, max_size=3), max_leaves=8
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(args=st.dictionaries(st.text(min_size=1), TREES, max_size=4))
def test_any_args_survive_toml(args: dict[str, object]) -> None:
    spec = loads(MINIMAL).spec
    spec.env[0].args = args
    assert loads(dumps(spec)).spec.env[0].args == args


def test_write_toml_refuses_what_toml_has_not() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        write_toml({"a": [None]})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"max_steps = {'9' * 5000}", "TOML: cannot be read"),
        (f"x = {'[' * 5000}{']' * 5000}", "TOML: has tables or lists more than 64 levels deep"),
        (f"{'.'.join('a' * 3000)} = 1", "TOML: has tables or lists more than 64 levels deep"),
    ],
    ids=["number", "lists", "tables"],
)
def test_a_file_beyond_all_bounds_is_refused(line: str, said: str) -> None:
    with pytest.raises(TomlError) as error:
        loads(line + MINIMAL)
    assert [str(problem)[: len(said)] for problem in error.value.problems] == [said]
