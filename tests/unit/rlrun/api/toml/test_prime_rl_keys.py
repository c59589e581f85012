"""Files in the form of prime-rl's own: what they become, and one reason for each key that a run does not have."""

from typing import Any

import pytest
from rlrun.api.base.field_errors import MAX_SUGGESTIONS
from rlrun.api.toml.dialects import group_by_reason
from rlrun.api.toml.loader import RunToml, TomlError, loads
from rlrun.api.toml.prime_rl_keys import OTHER_OPTIMIZER, is_prime_rl

from tests.support.prime_rl_keys import REVIEWED, outcome

NEWEST = """
max_steps = 20
seq_len = 2048
output_dir = "outputs"

[model]
name = "org/model"

[monitors.wandb]
project = "words"
name = "first"
tags = ["a"]

[log]
level = "debug"

[slurm]
job_name = "words"

[deployment]
num_train_gpus = 2
num_infer_gpus = 6

[weight_broadcast]
type = "nccl"
port = 29502

[ckpt]
interval = 10

[orchestrator]
batch_size = 128
group_size = 16
seq_len = 2048

[orchestrator.algo]
type = "grpo"

[orchestrator.renderer]
name = "default"

[orchestrator.concurrency]
max_inflight = 512

[orchestrator.train.sampling]
max_completion_tokens = 128

[orchestrator.train.sampling.extra_body.chat_template_kwargs]
enable_thinking = false

[[orchestrator.train.source]]
name = "words"
ratio = 0.3
curriculum = { gates = { zero_advantage = { type = "advantage_range" } } }

[orchestrator.train.source.env.taskset]
id = "team/words"
min_turns = 3

[orchestrator.train.source.env.taskset.task]
power_per_turn = false

[orchestrator.train.source.env.agent.harness]
id = "null"

[orchestrator.train.source.env.agent.runtime]
type = "subprocess"

[orchestrator.train.source.env.agent.timeout]
rollout = 600

[[orchestrator.train.source]]
[orchestrator.train.source.env.taskset]
id = "team/sums"

[orchestrator.train.source.env.player.harness]
id = "null"

[orchestrator.train.source.env.player.runtime]
type = "subprocess"

[orchestrator.eval]
interval = 5
skip_first_step = true

[orchestrator.eval.sampling]
max_completion_tokens = 128

[[orchestrator.eval.source]]
group_size = 4

[orchestrator.eval.source.env.taskset]
id = "team/words"

[trainer.optim]
lr = 1e-5
weight_decay = 0.0

[trainer.model]
attn = "flash_attention_2"

[trainer.model.lora]
rank = 8
target_modules = ["q_proj"]

[inference.vllm]
gpu_memory_utilization = 0.5
"""

EARLIER = """
max_steps = 20
clean_output_dir = true

[model]
name = "org/model"

[wandb]
project = "words"
shared = true

[orchestrator]
batch_size = 64
rollouts_per_example = 8
oversampling_factor = 2.0

[orchestrator.sampling]
max_tokens = 64
temperature = 0.7

[orchestrator.buffer]
online_difficulty_filtering = true
easy_threshold = 1.0

[[orchestrator.env]]
id = "team/words"
args = { n = 3 }

[orchestrator.val]
interval = 5
num_examples = 16

[trainer.optim]
lr = 3e-6

[inference]
"""


def values(run: RunToml) -> dict[str, Any]:
    """Return the values of the spec that were set."""
    return run.spec.model_dump(mode="json", exclude_unset=True)


def problems_in(text: str) -> dict[str, str]:
    """Return the problems of a file by path, of which each key has one."""
    with pytest.raises(TomlError) as caught:
        loads(text)
    paths = [problem.path for problem in caught.value.problems]
    assert len(set(paths)) == len(paths), "one reason for each key"
    assert not [problem for problem in caught.value.problems if "unknown field" in problem.message]
    return {problem.path: problem.message for problem in caught.value.problems}


def test_a_file_of_the_newest_form_becomes_a_run() -> None:
    run = loads(NEWEST)
    harness = {"id": "null", "runtime": {"type": "subprocess"}}
    words = {"id": "team/words", "name": "words", "weight": 0.3, "rollout_timeout_seconds": 600, "harness": harness}
    assert values(run) == {
        "model": "org/model",
        "max_steps": 20,
        "batch_size": 128,
        "rollouts_per_example": 16,
        "learning_rate": 1e-5,
        "loss": {"dppo": {"kl_tau": 0.001}},
        "weight_decay": 0.0,
        "lora": {"rank": 8, "target_modules": ["q_proj"]},
        "lora_alpha": 32.0,
        "sampling": {"max_tokens": 128, "enable_thinking": False},
        "env": [
            {**words, "taskset": {"min_turns": 3, "task": {"power_per_turn": False}}},
            {"id": "team/sums", "weight": 1.0},
        ],
        "eval": {
            "interval": 5,
            "sampling": {"max_tokens": 128},
            "eval_base_model": False,
            "env": [{"id": "team/words", "rollouts_per_example": 4}],
        },
        "algorithm": {"name": "grpo"},
        "difficulty_filter": {"enabled": True},
        "wandb": {"project": "words", "name": "first"},
        "checkpoints": {"interval": 10, "keep_cloud": -1},
    }
    assert set(group_by_reason(run.notes)) == {
        "orchestrator.eval.sampling: unset keys default to the values of sampling; in prime-rl, they default to "
        "the engine's values",
        f"trainer.optim: {OTHER_OPTIMIZER}",
        "seq_len, orchestrator.seq_len: ignored: seqLen of the RLModel applies",
        "output_dir: ignored: files of a run are stored in the platform's S3",
        "monitors.wandb.tags: ignored: only the metrics of a run are sent to Weights & Biases",
        "log, slurm, weight_broadcast: ignored: the platform sets it",
        "orchestrator.renderer.name: ignored: the engine renders prompts with the chat template from the model's files",
        "orchestrator.concurrency: ignored: oversampling_factor sets the number of rollouts in flight",
        "deployment, trainer.model.attn, inference.vllm.gpu_memory_utilization: ignored: the RLModel configures "
        "trainer and inference pods",
    }


def test_a_file_of_an_earlier_form_becomes_a_run() -> None:
    run = loads(EARLIER)
    assert values(run) == {
        "model": "org/model",
        "max_steps": 20,
        "batch_size": 64,
        "rollouts_per_example": 8,
        "oversampling_factor": 2.0,
        "learning_rate": 3e-6,
        "loss": {"dppo": {"kl_tau": 0.001}},
        "weight_decay": 0.01,
        "lora": {"enabled": False},
        "sampling": {"max_tokens": 64, "temperature": 0.7},
        "buffer": {"online_difficulty_filtering": True, "easy_threshold": 1.0},
        "env": [{"id": "team/words", "args": {"n": 3}}],
        "val": {"interval": 5, "num_examples": 16},
        "wandb": {"project": "words"},
    }


def test_missing_keys_have_the_defaults_of_prime_rl() -> None:
    text = """
model = { name = "org/model" }
orchestrator = { batch_size = 8, group_size = 4, train = { source = [{ env = { taskset = { id = "team/words" } } }] } }
"""
    run = loads(text).spec
    assert (run.learning_rate, run.lora.enabled) == (1e-6, False), "all weights, with the rate for them"
    assert (run.weight_decay, run.schedule, run.warmup_steps) == (0.01, "constant", 0)
    assert list(group_by_reason(loads(text).notes)) == [
        "max_steps: is not set: the run ends after 100 steps, whereas prime-rl has no limit",
        "orchestrator.train.sampling.max_completion_tokens: is not set: completions are limited to defaultMaxTokens "
        "of the RLModel, whereas prime-rl uses the whole context",
        f"trainer.optim: {OTHER_OPTIMIZER}",
    ]
    assert problems_in(text.replace("group_size = 4, ", "")) == {
        "orchestrator.group_size": "group_size must be at least 2 with the algorithm grpo: a single rollout has no "
        "baseline"
    }
    teacher = 'algo = { type = "opd", teacher = { name = "t", base_url = "https://t.test/v1" } }'
    assert loads(text.replace("group_size = 4", teacher)).spec.rollouts_per_example == 1


def test_distillation_names_its_teacher() -> None:
    teacher = (
        '[orchestrator.algo]\ntype = "opd"\n[orchestrator.algo.teacher]\nname = "t"\nbase_url = "https://t.test/v1"'
    )
    run = loads(NEWEST.replace('[orchestrator.algo]\ntype = "grpo"', teacher)).spec
    assert run.algorithm.model_dump(mode="json", exclude_unset=True) == {
        "name": "distillation",
        "teacher": {"url": "https://t.test/v1", "model": "t"},
    }


@pytest.mark.parametrize(
    ("there", "instead", "path", "reason"),
    [
        ('type = "grpo"', 'type = "echo"', "orchestrator.algo.type", "grpo and max_rl learn from rewards"),
        (
            "batch_size = 128",
            "batch_size = 100",
            "orchestrator.batch_size",
            "batch_size must be a multiple of group_size",
        ),
        ("lr = 1e-5", 'lr = 1e-5\ntype = "muon"', "trainer.optim.type", "the optimizer is AdamW"),
        ("lr = 1e-5", "lr = -1", "trainer.optim.lr", "must be greater than 0"),
        ('"team/words"\nmin', '"words"\nmin', "orchestrator.train.source[0].env.taskset.id", "has no owner"),
        ('"advantage_range"', '"other"', "orchestrator.train.source[0].curriculum.gates.zero_advantage.type", "drops"),
        ("rollout = 600", "setup = 600", "orchestrator.train.source[0].env.agent.timeout.setup", "in harness"),
        (
            'player.harness]\nid = "null"',
            'player.harness]\nid = "bash"',
            "orchestrator.train.source[1].env.player.harness.id",
            "single agent",
        ),
        ("interval = 5\n", "interval = 5\nscore = 3\n", "orchestrator.eval.score", "has no equivalent in a run"),
        (
            "enable_thinking = false",
            "clear_thinking = false",
            "orchestrator.train.sampling.extra_body.chat_template_kwargs.clear_thinking",
            "a run can set enable_thinking",
        ),
        ("[ckpt]", "[resume]\n[ckpt]", "resume", "checkpoint_id"),
        (
            'name = "org/model"',
            'name = "org/model"\n[trainer.model]\nname = "org/other"',
            "trainer.model.name",
            "has the same meaning as model.name",
        ),
    ],
)
def test_a_key_is_refused_with_one_reason(there: str, instead: str, path: str, reason: str) -> None:
    assert there in NEWEST
    text = NEWEST.replace(there, instead, 1)
    if "[trainer.model]" in instead:
        text = text.replace('[trainer.model]\nattn = "flash_attention_2"\n', "")
    found = problems_in(text)
    assert list(found) == [path]
    assert reason in found[path]


def test_evaluations_of_prime_rl_have_their_own_sampling() -> None:
    own = "eval.sampling]\ntemperature = 0\ntop_p = 0.9\nmin_p = 0.1\nmax_completion_tokens = 9"
    text = changed("eval.sampling]\nmax_completion_tokens = 128", own)
    text = text.replace("source]]\ngroup_size = 4", 'source]]\nsampling = { reasoning_effort = "low" }\ngroup_size = 4')
    found = loads(text).spec.eval
    assert found is not None
    assert found.sampling is not None
    assert found.env[0].sampling is not None
    assert found.sampling.model_dump(exclude_none=True) == {
        "max_tokens": 9, "temperature": 0.0, "top_p": 0.9, "min_p": 0.1
    }  # fmt: skip
    assert found.env[0].sampling.model_dump(exclude_none=True) == {"reasoning_effort": "low"}
    for key in ("top_k = 4", "seed = 3", "extra_body = { bad_words = [] }"):
        (message,) = problems_in(changed("eval.sampling]\n", f"eval.sampling]\n{key}\n")).values()
        assert "has no equivalent" in message


def test_a_step_of_prime_rl_may_count_tokens() -> None:
    found = loads(changed("batch_size = 128", "token_batch_size = 65536")).spec
    assert (found.token_batch_size, found.batch_size) == (65536, 128)


def test_a_file_for_one_process_is_refused() -> None:
    found = problems_in('max_steps = 9\n[model]\nname = "a/b"\n[data]\nname = "d"\n[optim]\nlr = 1e-5')
    assert set(found) == {"data", "optim", "env"}
    assert "write one file for the whole run" in found["optim"]


def test_a_file_of_the_hosted_form_is_none_of_prime_rl() -> None:
    hosted = {"model": "a/b", "env": [{"id": "a/b"}], "wandb": {"project": "p"}, "eval": {"interval": 3}}
    assert not is_prime_rl(hosted)
    assert is_prime_rl({"orchestrator": {"batch_size": 8}})
    assert not is_prime_rl({"orchestrator": {}}), "an empty table says nothing"
    assert problems_in('model = "a/b"\nseq_len = 3\n[[env]]\nid = "a/b"') == {
        "seq_len": "has no equivalent in a run: seqLen of the RLModel sets it"
    }


def test_an_id_without_an_owner_is_a_package_of_the_default_owner() -> None:
    """prime-rl's ids are local or of its hub: nearly all of its files have names alone."""
    text = NEWEST.replace('"team/', '"')
    assert values(loads(text, "team")) == values(loads(NEWEST))
    (note,) = [note for note in loads(text, "team").notes if note.path.endswith("source[1].env.taskset.id")]
    assert "has no owner: the owner team is used" in note.message
    found = problems_in(text)
    assert len(found) == 3
    assert {*found.values()} == {"has no owner: write owner/name as shown by `rlrun env list`"}


def test_ids_with_an_owner_or_of_a_wrong_form_stay_as_they_are() -> None:
    for wrong in ('"a/b/c"', '"-x"', '""', "3", '"a b"'):
        with pytest.raises(TomlError):
            loads(f'model = "a/b"\n[[env]]\nid = {wrong}', "team")
    hosted = 'model = "a/b"\n[[env]]\nid = "words@1.0"\n[[eval.env]]\nid = "other/words"'
    spec = loads(hosted, "team").spec
    assert spec.eval is not None
    assert (spec.env[0].id, spec.env[0].version, spec.eval.env[0].id) == ("team/words", "1.0", "other/words")


def changed(there: str, instead: str) -> str:
    assert there in NEWEST
    return NEWEST.replace(there, instead, 1)


def notes_of(text: str) -> dict[str, str]:
    return {note.path: note.message for note in loads(text).notes}


LOSS = '[trainer.loss]\ntype = "default"\ndppo_mask_low = 0.2\nadv_tau = 1.0\nkl_tau = 1e-3\n[trainer.optim]'
OPD = 'type = "opd"\n[orchestrator.algo.teacher]\nname = "t"\nbase_url = "https://t.test/v1"'


def test_the_loss_of_prime_rl_is_dppo_written_out_or_not() -> None:
    dppo = {"low": 0.2, "high": 0.2, "kl_tau": 0.001}
    for text in (NEWEST, changed("[trainer.optim]", LOSS), changed('type = "grpo"', OPD)):
        loss = loads(text).spec.loss
        assert loss.dppo is not None
        assert loss.dppo.model_dump() == dppo
    other = "[trainer.loss]\ndppo_mask_low = 0.1\ndppo_mask_high = 0.3\nkl_tau = 0.0\n[trainer.optim]"
    loss = loads(changed("[trainer.optim]", other)).spec.loss
    assert loss.dppo is not None
    assert loss.dppo.model_dump() == {"low": 0.1, "high": 0.3, "kl_tau": 0.0}
    ratios = loads(changed("[trainer.optim]", "[trainer.loss]\ntoken_mask_high = 4.0\n[trainer.optim]")).spec.loss
    assert (ratios.dppo, ratios.ratio_high) == (None, 4.0), "the loss of earlier releases"
    for key in ('type = "ipo"', "adv_tau = 2.0"):
        (path,) = problems_in(changed("[trainer.optim]", f"[trainer.loss]\n{key}\n[trainer.optim]"))
        assert path == f"trainer.loss.{key.partition(' ')[0]}"


def test_algorithms_of_prime_rl_become_advantages_and_penalties() -> None:
    penalty = 'type = "linear", num_output_tokens_weight = 0.5, num_turns_weight = 0'
    found = loads(changed('type = "grpo"', f'type = "grpo"\nlength_penalty = {{ {penalty} }}')).spec.algorithm
    assert found.length_penalty is not None
    assert found.length_penalty.model_dump() == {
        "output_tokens_weight": 0.5, "input_tokens_weight": 0.1, "turns_weight": 0.0
    }  # fmt: skip
    assert loads(changed('type = "grpo"', 'type = "grpo"\nlength_penalty = {}')).spec.algorithm.length_penalty
    algorithm = loads(changed('type = "grpo"', 'type = "max_rl"')).spec.algorithm
    assert (algorithm.name, algorithm.advantage) == ("grpo", "maxRl")
    masked = loads(changed("group_size = 16", "group_size = 16\nmask_truncated_completions = true"))
    assert masked.spec.algorithm.mask_truncated


def test_a_frozen_router_is_refused() -> None:
    lora = '[trainer.model]\nattn = "flash_attention_2"'
    (found,) = problems_in(changed(lora, "[trainer.model]\nfreeze_moe_router = true")).values()
    assert "LoRA never trains routers" in found
    loads(changed(lora, "[trainer.model]\nfreeze_moe_router = false"))


@pytest.mark.parametrize("part", ["trainer", "orchestrator"])
def test_monitors_and_checkpoints_of_one_process_are_those_of_the_run(part: str) -> None:
    text = NEWEST.replace("[monitors.wandb]", f"[{part}.monitors.wandb]").replace("[ckpt]", f"[{part}.ckpt]")
    assert values(loads(text)) == values(loads(NEWEST))
    assert f"{part}.monitors" not in notes_of(text)
    repeated = changed("[ckpt]\ninterval = 10", f"[ckpt]\ninterval = 10\n[{part}.ckpt]\ninterval = 10")
    assert values(loads(repeated)) == values(loads(NEWEST))


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("eval.sampling]\n", "eval.sampling]\ntop_k = -1\n"),
        ("[slurm]", '[tokenizer]\nname = "org/model"\n[slurm]'),
        ("[trainer.optim]", '[trainer.tokenizer]\nname = "org/model"\n[trainer.optim]'),
        ("[orchestrator]\n", '[orchestrator]\nlora_name = "mine"\n'),
        ("[trainer.optim]", "[orchestrator.model.lora]\nrank = 8\n[trainer.optim]"),
    ],
)
def test_what_changes_nothing_is_accepted(there: str, instead: str) -> None:
    assert values(loads(changed(there, instead))) == values(loads(NEWEST))


@pytest.mark.parametrize(
    ("there", "instead", "path"),
    [
        ("eval.sampling]\n", "eval.sampling]\ntop_k = 9\n", "orchestrator.eval.sampling.top_k"),
        ("[slurm]", '[tokenizer]\nname = "org/other"\n[slurm]', "tokenizer.name"),
        ("[slurm]", '[tokenizer]\nchat_template = "x"\n[slurm]', "tokenizer.chat_template"),
        ("[trainer.optim]", "[orchestrator.model.lora]\nrank = 4\n[trainer.optim]", "orchestrator.model.lora.rank"),
    ],
)
def test_what_changes_something_is_refused(there: str, instead: str, path: str) -> None:
    assert list(problems_in(changed(there, instead))) == [path]


def test_the_size_of_groups_may_stand_at_each_source() -> None:
    each = NEWEST.replace("group_size = 16\n", "").replace("source]]\n", "source]]\ngroup_size = 16\n", 2)
    assert values(loads(each)) == values(loads(NEWEST))
    found = problems_in(each.replace("group_size = 16", "group_size = 8", 1))
    assert "applies to all environments" in found.pop("orchestrator.train.source[1].group_size")
    assert not found


def test_taskset_and_harness_may_stand_at_the_source() -> None:
    text = NEWEST.replace("source.env.taskset", "source.taskset").replace("source.env.agent.harness", "source.harness")
    assert values(loads(text)) == values(loads(NEWEST))


def test_an_evaluation_without_sources_is_none() -> None:
    text = 'model = { name = "org/model" }\n[orchestrator]\ngroup_size = 4\n[orchestrator.eval]\ninterval = 3\n'
    text += '[[orchestrator.train.source]]\nenv = { taskset = { id = "team/words" } }\n'
    assert loads(text).spec.eval is None
    assert "has no source" in notes_of(text)["orchestrator.eval"]


def test_a_typing_error_gets_the_name_that_was_meant() -> None:
    (message,) = problems_in(changed("batch_size = 128", "batch_sise = 128\nbatch_size = 128")).values()
    assert message == "unknown key; did you mean batch_size?"
    (message,) = problems_in(changed("[trainer.optim]", "[trainer.optimm]\n[trainer.optim]")).values()
    assert message == "unknown key; did you mean optim?"
    many = "".join(f"optim{number} = 1\n" for number in range(40))
    found = problems_in(changed("[trainer.optim]", f"[trainer]\n{many}[trainer.optim]")).values()
    assert (len(found), sum("did you mean" in message for message in found)) == (40, MAX_SUGGESTIONS)
    (message,) = problems_in(changed("[ckpt]", "[orchestrator.zebra]\nx = 3\n[ckpt]")).values()
    assert message == "has no equivalent in a run"


def test_answers_without_a_limit_are_noted() -> None:
    text = NEWEST.replace("[orchestrator.train.sampling]\nmax_completion_tokens = 128\n", "").replace(
        "[orchestrator.eval.sampling]\nmax_completion_tokens = 128\n", ""
    )
    assert "defaultMaxTokens" in notes_of(text)["orchestrator.train.sampling.max_completion_tokens"]


def test_the_default_sampler_of_a_curriculum_is_accepted() -> None:
    text = changed("{ gates = {", '{ sampler = { type = "standard" }, gates = {')
    assert values(loads(text)) == values(loads(NEWEST))
    other = problems_in(text.replace('"standard"', '"difficulty_pool"'))
    assert list(other) == ["orchestrator.train.source[0].curriculum.sampler.type"]


def test_router_replay_is_noted_as_unsupported() -> None:
    text = changed("[trainer.optim]", "[trainer]\nenable_router_replay = true\n[trainer.optim]")
    assert "not supported" in notes_of(text)["trainer.enable_router_replay"]


def test_two_entries_of_one_environment_get_names_of_their_own() -> None:
    text = 'model = "a/b"\n[[env]]\nid = "o/x"\n[[env]]\nid = "o/x@1.0"\n[[env]]\nid = "o/x"\nname = "x-2"\n'
    run = loads(text + '[[eval.env]]\nid = "o/x"\n[[eval.env]]\nid = "o/X"\n')
    assert [entry.effective_name for entry in run.spec.env] == ["x", "x-3", "x-2"]
    assert run.spec.eval is not None
    assert [entry.effective_name for entry in run.spec.eval.env] == ["x", "X"]
    assert [note.path for note in run.notes] == ["env[1].name"]
    assert "two entries of env have the same name" in str(problems_in(text + '[[env]]\nid = "o/y"\nname = "x-2"\n'))


def test_every_key_of_prime_rl_is_translated_refused_or_ignored_as_reviewed() -> None:
    """The file has the keys of prime-rl's source; `python -m tests.support.prime_rl_keys CHECKOUT` lists newer ones."""
    reviewed = dict(line.split() for line in REVIEWED.read_text().splitlines())
    assert len(reviewed) > 400
    assert {key: outcome(key) for key in reviewed} == reviewed
    assert outcome("orchestrator.train.source[].env_of_next_year") == "refused"


@pytest.mark.parametrize(
    ("section", "line", "key"),
    [
        ("inference.vllm", 'model = "org/other"', "model"),
        ("inference.vllm", 'chat_template = "x"', "chat_template"),
        ("inference.vllm", "rope_scaling = { factor = 4.0 }", "rope_scaling"),
        ("inference.vllm", "hf_overrides = { n = 1 }", "hf_overrides"),
        ("inference.vllm", "override_generation_config = { top_k = 3 }", "override_generation_config"),
        ("inference.vllm", 'generation_config = "auto"', "generation_config"),
        ("inference.vllm", 'logprobs_mode = "raw_logprobs"', "logprobs_mode"),
        ("inference.model", 'name = "org/other"', "name"),
        ("trainer.model.index_cache", "topk_freq = 2", ""),
        ("trainer.model", "moe_of_next_year = 1", "moe_of_next_year"),
        ("trainer.model", "loraa = { rank = 4 }", "loraa"),
        ("trainer.optim", "eps = 1e-3", "eps"),
        ("model", "lora = { rank = 4 }", "lora"),
        ("ckpt", "intervall = 3", "intervall"),
        ("monitors.wandb", 'projct = "x"', "projct"),
    ],
)
def test_what_decides_what_is_learned_is_not_dropped_with_its_section(section: str, line: str, key: str) -> None:
    present = f"[{section}]\n"
    text = changed(present, f"{present}{line}\n") if present in NEWEST else f"{NEWEST}\n{present}{line}\n"
    assert list(problems_in(text)) == [f"{section}.{key}".rstrip(".")]


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("[inference.vllm]", '[inference.vllm]\nmodel = "org/model"\ngeneration_config = "vllm"'),
        ('type = "grpo"', 'type = "grpo"\nsampling = { source = "policy" }'),
        ("source]]\ngroup_size = 4", "source]]\nratio = 2.0\ngroup_size = 4"),
        ("[trainer.optim]", "[monitors]\n[trainer.optim]"),
    ],
)
def test_what_repeats_the_settings_of_the_run_is_accepted(there: str, instead: str) -> None:
    assert values(loads(changed(there, instead))) == values(loads(NEWEST))


def test_sources_of_prime_rl_have_their_own_sampling() -> None:
    body = "extra_body = { top_k = -1, min_p = 0.1, chat_template_kwargs = { enable_thinking = false } }"
    own = f"sampling = {{ temperature = 0.5, max_completion_tokens = 9, {body} }}"
    found = loads(changed("ratio = 0.3", f"ratio = 0.3\n{own}")).spec.env[0].sampling
    assert found is not None
    assert found.model_dump(exclude_none=True) == {
        "max_tokens": 9, "temperature": 0.5, "min_p": 0.1, "enable_thinking": False
    }  # fmt: skip
    for key in ("top_k = 4", "seed = 3", "extra_body = { bad_words = [] }"):
        (message,) = problems_in(changed("ratio = 0.3", f"ratio = 0.3\nsampling = {{ {key} }}")).values()
        assert "has no equivalent" in message


def test_the_settings_of_the_optimizer_are_said() -> None:
    text = changed("weight_decay = 0.0", "weight_decay = 0.1\nbetas1 = 0.9\nbetas2 = 0.999\nmax_norm = 0.5")
    assert "betas of 0.9 and 0.95" in notes_of(text)["trainer.optim"]
    assert [path for path in notes_of(text) if path.startswith("trainer.optim.")] == ["trainer.optim.betas2"]
    run = loads(text).spec
    assert (run.weight_decay, run.max_grad_norm) == (0.1, 0.5)


@pytest.mark.parametrize(
    ("scheduler", "wanted"),
    [
        ('type = "constant"', ("constant", 0, None, 0.0)),
        ('type = "linear"', ("linear", 10, 10, 0.0)),
        ('type = "linear"\nwarmup_steps = 2\ndecay_steps = 0\nmin_lr = 1e-7', ("linear", 2, 0, 1e-7)),
        ('type = "cosine"\nmin_lr = 1e-6', ("cosine", 10, None, 1e-6)),
    ],
)
def test_a_scheduler_of_prime_rl_is_the_schedule_with_its_defaults(scheduler: str, wanted: tuple[Any, ...]) -> None:
    run = loads(changed("[trainer.optim]", f"[trainer.scheduler]\n{scheduler}\n[trainer.optim]")).spec
    assert (run.schedule, run.warmup_steps, run.decay_steps, run.min_learning_rate) == wanted


def test_how_a_teacher_is_reached_is_left_to_the_platform() -> None:
    text = changed('type = "grpo"', OPD + "\nskip_model_check = true")
    assert notes_of(text)["orchestrator.algo.teacher.skip_model_check"] == "ignored: the platform sets it"
    assert list(problems_in(text.replace("skip_model_check = true", 'headers = { a = "b" }'))) == [
        "orchestrator.algo.teacher.headers"
    ]
