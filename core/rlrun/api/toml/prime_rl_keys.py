"""Keys in prime-rl's own files, and their equivalents here.

The rows follow the configuration classes of prime-rl at commit 559b4477 of August 2026 (`prime_rl.configs.rl`), and the
names of the same settings in its releases since January 2026. They apply only to files that
`is_prime_rl` recognizes.

Keys that control only where and how fast a run computes are ignored, because the RLModel and the platform control this
in rlrun. Keys that affect what is learned are translated or refused, except the betas of AdamW: nearly all files have
them, so a note reports the trainer's values. Sections with both kinds list every key, so that new and misspelled keys
are refused. `tests.support.prime_rl_keys` compares the rows with the source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlrun.api.toml.dialect_key import DialectKey, below, ignore, refuse

IN_THE_MODEL = "the RLModel configures trainer and inference pods"
OF_THE_PLATFORM = "the platform sets it"
STORED = "files of a run are stored in the platform's S3"
NO_SETTING = "has no equivalent in a run"
WORKERS = "infrastructure.compute_size sets the number of workers per pod of an environment"
RETRIES = "has no equivalent: failed rollouts are not trained on; retry in the environment's code"
SAME_TOKENIZER = "has no equivalent: tokenizer and chat template come from the model's files"
OTHER_OPTIMIZER = "AdamW in rlrun uses betas of 0.9 and 0.95; prime-rl defaults to 0.9 and 0.999"
"""Note about settings of the optimizer that a run cannot change."""
SAME_WEIGHTS = "has no equivalent: engines serve the trained model as described in its files"
SAME_SAMPLING = "has no equivalent: only the sampling section can change the distribution of tokens"
OTHER_OBJECTIVE = "has no equivalent: set the policy gradient in rlrun's loss section"
WHOLE_FILE = "belongs to a file for a single process: write one file for the whole run, with an orchestrator table"

EARLIER = {
    "orchestrator.train.env": "orchestrator.train.source",
    "orchestrator.env": "orchestrator.train.source",
    "orchestrator.eval.env": "orchestrator.eval.source",
    "orchestrator.sampling": "orchestrator.train.sampling",
    "trainer.model.experimental.lora": "trainer.model.lora",
}
"""Newest name of each section that was renamed, by its name in earlier releases."""


def _names(section: str) -> tuple[str, ...]:
    """Return the names of a section in all releases."""
    return (section, *(earlier for earlier, name in EARLIER.items() if name == section))


@dataclass(frozen=True)
class DialectDefault:
    """Default value in prime-rl that differs from the default of this schema."""

    key: str
    """Path of the key in this schema."""
    value: Any
    origin: str
    """Path of the key in prime-rl."""
    section: str | None = None
    """Top-level key in this schema that the file must set for the default to apply. None if no key is required."""
    of: tuple[Any, ...] = ()
    """Values of the key `section` for which the default applies. If empty, all values."""
    without: str | None = None
    """Top-level key in this schema that must be absent for the default to apply."""


DEFAULTS = (
    DialectDefault("rollouts_per_example", 1, "orchestrator.group_size"),
    DialectDefault("learning_rate", 1e-6, "trainer.optim.lr"),
    DialectDefault("weight_decay", 0.01, "trainer.optim.weight_decay"),
    DialectDefault("warmup_steps", 10, "trainer.scheduler.warmup_steps", "schedule", ("linear", "cosine")),
    DialectDefault("decay_steps", 10, "trainer.scheduler.decay_steps", "schedule", ("linear",)),
    DialectDefault("loss.dppo.kl_tau", 0.001, "trainer.loss.kl_tau", without="loss"),
    DialectDefault("lora.enabled", False, "trainer.model.lora", without="lora"),
    DialectDefault("lora.rank", 16, "trainer.model.lora.rank", section="lora"),
    DialectDefault("lora_alpha", 32.0, "trainer.model.lora.alpha", section="lora"),
    DialectDefault("checkpoints.keep_cloud", -1, "ckpt.keep_last", section="checkpoints"),
)


def _environment(source: str, target: str) -> Iterator[DialectKey]:
    """Yield rows for the keys of an entry in a list of environments."""
    yield DialectKey(source, target)
    yield from below(source, target, "name", "id", "args")
    for section in (f"{source}.env", source):
        yield DialectKey(f"{section}.taskset", f"{target}.taskset")
        yield DialectKey(f"{section}.taskset.id", f"{target}.id")
    for section in (f"{source}.env.agent", source):
        yield DialectKey(f"{section}.harness", f"{target}.harness")
    yield DialectKey(f"{source}.env.agent.runtime", f"{target}.harness.runtime")
    # These two rows take precedence over the rows for other agents below.
    yield DialectKey(f"{source}.env.agent.harness.id", f"{target}.harness.id")
    yield DialectKey(f"{source}.env.agent.runtime.type", f"{target}.harness.runtime.type")
    yield DialectKey(f"{source}.env.agent.timeout.rollout", f"{target}.rollout_timeout_seconds")
    yield from refuse(
        "has no equivalent: set an agent's settings in harness",
        f"{source}.env.agent",
        f"{source}.env.agent.*",
        f"{source}.env.agent.timeout.*",
    )
    agents = "is set for a single agent: in rlrun, all agents of an environment use the harness null in a subprocess"
    yield DialectKey(f"{source}.env.*.harness.id", None, agents, accepted=("null",))
    yield DialectKey(f"{source}.env.*.runtime.type", None, agents, accepted=("subprocess",))
    yield from refuse("has no equivalent: set an environment's settings in taskset", f"{source}.env", f"{source}.env.*")
    yield from ignore(WORKERS, *(f"{source}.{key}" for key in ("num_workers", "serve", "pool", "max_concurrent")))
    yield from refuse(
        "has no equivalent: environments run in the run's pods", f"{source}.address", f"{source}.serve.address"
    )
    yield from refuse("is not a key of rlrun: use rollout_timeout_seconds", f"{source}.timeout")
    yield from refuse(RETRIES, f"{source}.max_retries", f"{source}.retries")
    yield from refuse("has no equivalent: all environments use the same algorithm", f"{source}.algo")
    yield from refuse(NO_SETTING, f"{source}.*")


def _trained_on(source: str) -> Iterator[DialectKey]:
    yield from _environment(source, "env[]")
    yield DialectKey(f"{source}.ratio", "env[].weight")
    yield from _sampling_overrides(f"{source}.sampling", "env[].sampling")
    for key in ("group_size", "rollouts_per_example"):
        yield DialectKey(
            f"{source}.{key}",
            "rollouts_per_example",
            "has no equivalent: rollouts_per_example applies to all environments",
            same_as="rollouts_per_example",
        )
    gates = f"{source}.curriculum.gates"
    yield DialectKey(
        f"{gates}.*.type",
        "difficulty_filter.enabled",
        "has no equivalent: only advantage_range is supported, which drops groups whose rewards are all equal, in all "
        "environments",
        values={"advantage_range": True},
    )
    for key in ("reject_min", "reject_max"):
        yield DialectKey(
            f"{gates}.*.{key}", None, "has no equivalent: only groups without signal are dropped", accepted=(0, 0.0)
        )
    by_difficulty = "has no equivalent: buffer selects examples by difficulty"
    yield DialectKey(f"{source}.curriculum.sampler.type", None, by_difficulty, accepted=("standard",))
    yield from refuse(by_difficulty, f"{source}.curriculum")


def _evaluated_on(source: str) -> Iterator[DialectKey]:
    yield from _environment(source, "eval.env[]")
    yield from below(source, "eval.env[]", "num_examples", "rollouts_per_example")
    yield from ignore("an evaluation always uses all its environments", f"{source}.ratio")
    yield from _sampling_overrides(f"{source}.sampling", "eval.env[].sampling")
    yield DialectKey(f"{source}.group_size", "eval.env[].rollouts_per_example")
    yield DialectKey(
        f"{source}.interval",
        None,
        "has no equivalent: eval.interval applies to all environments",
        same_as="eval.interval",
    )


def _sampling(section: str) -> Iterator[DialectKey]:
    yield DialectKey(section, "sampling")
    yield from below(section, "sampling", "max_tokens", "temperature", "top_p", "min_tokens")
    yield from below(section, "sampling", "repetition_penalty", "seed")
    yield DialectKey(f"{section}.max_completion_tokens", "sampling.max_tokens")
    yield from refuse("has no equivalent: the temperature is constant during a run", f"{section}.temp_scheduler")
    yield from refuse(NO_SETTING, f"{section}.*")
    yield from _extra_body(section, "sampling")


def _extra_body(section: str, target: str) -> Iterator[DialectKey]:
    """Yield rows for a table of fields that are added to requests to the engine."""
    body, remark = f"{section}.extra_body", "has no equivalent: a run supports no other sampling settings"
    for key in ("enable_thinking", "reasoning_effort"):
        yield DialectKey(f"{body}.chat_template_kwargs.{key}", f"{target}.{key}")
    yield DialectKey(f"{body}.reasoning_effort", f"{target}.reasoning_effort")
    yield DialectKey(f"{body}.top_k", None, remark, accepted=(-1, 0))
    yield DialectKey(f"{body}.min_p", f"{target}.min_p")
    yield DialectKey(f"{body}.return_token_ids", None, remark, accepted=(True,))
    yield from refuse(
        "has no equivalent: a run can set enable_thinking and reasoning_effort; environments send other chat template "
        "variables in their requests",
        f"{body}.chat_template_kwargs",
    )
    yield from refuse(remark, body)


def _sampling_overrides(section: str, target: str) -> Iterator[DialectKey]:
    yield DialectKey(section, target)
    yield from below(section, target, "max_tokens", "temperature", "top_p", "min_p", "reasoning_effort")
    yield DialectKey(f"{section}.max_completion_tokens", f"{target}.max_tokens")
    yield DialectKey(f"{section}.top_k", None, NO_SETTING, accepted=(-1, 0))
    yield from refuse(NO_SETTING, f"{section}.*")
    yield from _extra_body(section, target)


def _wandb(section: str) -> Iterator[DialectKey]:
    yield DialectKey(section, "wandb")
    yield from below(section, "wandb", "project", "entity", "name", "offline")
    yield from ignore(ONLY_METRICS, *(f"{section}.{key}" for key in OF_WANDB))
    yield from refuse(NO_SETTING, f"{section}.*")


def _lora(section: str) -> Iterator[DialectKey]:
    yield DialectKey(section, "lora")
    yield from below(section, "lora", "rank", "dropout", "target_modules")
    yield DialectKey(f"{section}.alpha", "lora_alpha")
    yield DialectKey(
        f"{section}.modules_to_save", None, "has no equivalent: an adapter has only LoRA weights", accepted=([],)
    )
    yield from refuse(NO_SETTING, f"{section}.*")


def _checkpoints(section: str) -> Iterator[DialectKey]:
    yield DialectKey(section, "checkpoints")
    yield DialectKey(f"{section}.interval", "checkpoints.interval")
    yield DialectKey(f"{section}.keep_last", "checkpoints.keep_cloud")
    yield from refuse(
        "has no equivalent: checkpoints.keep_cloud keeps the newest, or all with -1", f"{section}.keep_interval"
    )
    yield from _resume(f"{section}.resume_step")
    yield from ignore("a new run does not load a checkpoint file", *(f"{section}.skip_{part}" for part in SKIPPED))
    yield from ignore(OF_THE_PLATFORM, f"{section}.wait_for_weights_timeout")
    yield from ignore(STORED, *(f"{section}.{key}" for key in OF_CHECKPOINTS))
    yield from refuse(NO_SETTING, f"{section}.*")


def _tokenizer(section: str) -> Iterator[DialectKey]:
    yield DialectKey(f"{section}.name", None, SAME_TOKENIZER, same_as="model")
    yield from ignore(IN_THE_MODEL, f"{section}.trust_remote_code")
    yield from refuse(SAME_TOKENIZER, section)


def _resume(*keys: str) -> Iterator[DialectKey]:
    return refuse("has no equivalent: set checkpoint_id to a checkpoint that `rlrun checkpoints` shows", *keys)


def _orchestrator(key: str) -> str:
    return f"orchestrator.{key}"


def _teacher(section: str) -> Iterator[DialectKey]:
    for key in ("name", "model.name"):
        yield DialectKey(f"{section}.{key}", "algorithm.teacher.model")
    yield DialectKey(f"{section}.base_url", "algorithm.teacher.url")
    yield from ignore(
        OF_THE_PLATFORM,
        *(f"{section}.{key}" for key in ("wait_for_ready_timeout", "skip_model_check", "admin_base_url")),
    )
    yield from refuse("has no equivalent: algorithm.teacher has only url and model", section)


def _of_the_engine() -> Iterator[DialectKey]:
    """Yield rows for the engine's keys. Arguments without a row only affect how the engine computes."""
    yield from ignore(IN_THE_MODEL, "inference")
    for key in ("vllm.model", "vllm_extra.model", "model.name"):
        yield DialectKey(f"inference.{key}", None, SAME_WEIGHTS, same_as="model")
    for section in ("inference.vllm", "inference.model", "inference.vllm_extra"):
        yield DialectKey(f"{section}.generation_config", None, SAME_SAMPLING, accepted=("vllm",))
        yield DialectKey(f"{section}.logprobs_mode", None, SAME_SAMPLING, accepted=("processed_logprobs",))
        yield from refuse(
            SAME_SAMPLING, *(f"{section}.{key}" for key in ("override_generation_config", "logits_processors"))
        )
        yield from refuse(SAME_WEIGHTS, *(f"{section}.{key}" for key in ("rope_scaling", "hf_overrides", "revision")))
        yield from refuse(SAME_TOKENIZER, *(f"{section}.{key}" for key in ("chat_template", "tokenizer")))


ONLY_METRICS = "only the metrics of a run are sent to Weights & Biases"
OF_WANDB = (
    "group", "tags", "shared", "id", "log_extras", "samples", "interval",
)  # fmt: skip
"""Keys of the Weights & Biases sections that do not concern a run's metrics."""
OF_CHECKPOINTS = (
    "output_dir", "weights", "weights_only", "save_async", "save_format", "save_sharded", "save_adapter_separately",
    "skip_gather_master_weights", "skip_buffer", "buffer_path", "keep",
)  # fmt: skip
"""Keys of the checkpoint sections that control which files are written, and where."""
SKIPPED = ("progress", "scheduler", "dataloader", "optimizer")
"""Parts of a checkpoint that prime-rl can skip when loading it."""
OF_PASSES = (
    "trust_remote_code", "conversion_dir", "seq_len", "attn", "compile", "ac", "ac_offloading", "fsdp_cpu_offload",
    "optim_cpu_offload", "full_offload", "reshard_after_forward", "dp_replicate", "tp", "ep", "ep_comm_backend",
    "deepep_num_sms", "deepep_token_chunk_size", "cp", "cp_style", "impl", "moe_use_grouped_mm", "moe_fused_kernel",
    "fused_lm_head_token_chunk_size", "fused_lm_head_chunk_size", "load_using_meta", "liger_kernel", "log_signature",
)  # fmt: skip
"""Keys below `trainer.model` that affect only where and how fast the trainer computes."""
OF_PRECISION = ("optimization_dtype", "reduce_dtype", "moe_router_dtype", "quantization", "fp8")
"""Keys below `trainer.model` that set numeric precision."""
OF_ONE_PROCESS = (
    "train", "group_size", "token_batch_size", "algo", "concurrency", "renderer", "client", "eval.source",
    "eval.client", "eval.concurrency", "optim", "scheduler", "dist_timeout_seconds", "server", "vllm", "router",
    "kv_cache_offload", "use_deep_gemm", "enable_fp32_lm_head", "enable_lora", "max_lora_rank", "max_loras",
    "gpu_memory_utilization", "enable_expert_parallel", "enable_eplb", "max_concurrent_runs",
)  # fmt: skip
"""Keys in files for a single process: the orchestrator, the trainer or the engine."""
OF_THE_ORCHESTRATOR = (
    "client", "log", "weight_broadcast", "rollout_transport", "heartbeat", "env_server_base_port",
    "num_train_workers", "pad_to_multiple_of", "collect_inference_metrics", "inference_metrics_roles", "pool_size",
    "use_token_client", "report_to_wandb",
)  # fmt: skip
"""Keys below `orchestrator` that configure processes."""
OF_THE_TRAINER = (
    "weight_broadcast", "rollout_transport", "log", "heartbeat", "metrics_server", "output_dir", "weights",
    "enable_token_export", "max_concurrent_runs", "matmul_precision", "gc",
    "dist_timeout_seconds", "memory_profiler_path", "trace_path",
)  # fmt: skip
"""Keys below `trainer` that configure processes."""

PRIME_RL = (
    DialectKey("model.name", "model", "Id of an RLModel in the cluster, whose `source` names the weights."),
    *refuse("has no equivalent: training on images is not supported", "model.vlm"),
    *refuse("is not a key of the whole run: set it under trainer.model", "model.*"),
    DialectKey("run.name", "name"),
    *ignore("seqLen of the RLModel applies", "seq_len", "orchestrator.seq_len"),
    *ignore(STORED, "output_dir", "clean", "clean_output_dir", "run", "orchestrator.output_dir"),
    *ignore(OF_THE_PLATFORM, "log", "weight_broadcast", "rollout_transport", "slurm", "heartbeat"),
    *ignore(
        IN_THE_MODEL,
        "deployment",
        "trainer_gpu_ids",
        "inference_gpu_ids",
        "matmul_precision",
        "gpus_per_node",
    ),
    *_of_the_engine(),
    *ignore("trainer.model.lora decides which weights are trained", "type"),
    *ignore("metrics are not sent to Prime Intellect's platform", "monitors.prime", "prime_monitor"),
    *ignore("metrics are stored in S3", "monitors", "monitors.file"),
    *_wandb("monitors.wandb"),
    *ignore(ONLY_METRICS, *(f"wandb.{key}" for key in OF_WANDB)),
    *_checkpoints("ckpt"),
    *_resume("resume", "orchestrator.resume", "trainer.resume"),
    *(row for section in ("tokenizer", "orchestrator.tokenizer", "trainer.tokenizer") for row in _tokenizer(section)),
    *refuse("has no equivalent: environments get variables from Secrets (env_file, env_from)", "env_vars"),
    *refuse("is a command-line option of rlrun: rlrun run FILE --dry-run", "dry_run"),
    *refuse(NO_SETTING, "bench", "trainer.bench", "orchestrator.bench"),
    *refuse("has no equivalent: the chart's images contain the code of trainer and orchestrator", "image_tag"),
    *refuse("has no equivalent: algorithm.teacher names a teacher that is served elsewhere", "teacher_inference"),
    *refuse(WHOLE_FILE, *OF_ONE_PROCESS),
    *refuse("has no equivalent: demonstrations come from the environments (algorithm.name sft)", "data"),
    # The orchestrator.
    *(
        DialectKey(_orchestrator(key), key)
        for key in (
            "batch_size",
            "token_batch_size",
            "max_steps",
            "rollouts_per_example",
            "oversampling_factor",
            "max_async_level",
            "seed",
        )
    ),
    DialectKey(
        "orchestrator.group_size", "rollouts_per_example", "With prime-rl's default of 1, a group has no baseline."
    ),
    DialectKey(
        "orchestrator.trajectory_strategy",
        "trajectory_strategy",
        "prime-rl has ignored this key since January 2026 and behaves like interleaved.",
    ),
    DialectKey("orchestrator.max_off_policy_steps", "max_off_policy_steps"),
    DialectKey("max_off_policy_steps", "max_off_policy_steps"),
    *ignore("max_async_level is always a strict limit", "orchestrator.strict_async_level", "strict_async_level"),
    *ignore(
        "oversampling_factor sets the number of rollouts in flight",
        "orchestrator.concurrency",
        "orchestrator.max_inflight_rollouts",
        "orchestrator.max_concurrent",
    ),
    *ignore(OF_THE_PLATFORM, *map(_orchestrator, OF_THE_ORCHESTRATOR)),
    *(
        row
        for process in ("orchestrator", "trainer")
        for row in (
            *ignore("metrics are stored in S3", f"{process}.monitors"),
            *_wandb(f"{process}.monitors.wandb"),
            *_wandb(f"{process}.wandb"),
            *_checkpoints(f"{process}.ckpt"),
        )
    ),
    *ignore(
        "metrics are not sent to Prime Intellect's platform",
        "orchestrator.prime_monitor",
        "orchestrator.monitors.prime",
    ),
    *refuse("has no equivalent: limit concurrency in the environment's code", "orchestrator.tasks_per_minute"),
    *refuse("has no equivalent: environments get variables from Secrets (env_file, env_from)", "orchestrator.env_vars"),
    *ignore("the engine renders prompts with the chat template from the model's files", "orchestrator.renderer.name"),
    *ignore(IN_THE_MODEL, "orchestrator.renderer.reasoning_parser", "orchestrator.renderer.tool_parser"),
    DialectKey("orchestrator.renderer.enable_thinking", "sampling.enable_thinking"),
    *refuse("has no equivalent: the chat template in the model's files decides it", "orchestrator.renderer"),
    DialectKey("orchestrator.model.name", "model"),
    DialectKey("orchestrator.student.model.name", "model"),
    *(
        row
        for section in ("orchestrator.model.lora", "orchestrator.student.model.lora")
        for row in (
            *ignore("trainer.model.lora applies", section),
            DialectKey(f"{section}.rank", None, "has no equivalent: trainer.model.lora applies", same_as="lora.rank"),
            DialectKey(f"{section}.alpha", None, "has no equivalent: trainer.model.lora applies", same_as="lora_alpha"),
        )
    ),
    *ignore("adapters are named after their run", "orchestrator.lora_name"),
    *ignore(OF_THE_PLATFORM, "orchestrator.model.client", "orchestrator.student.client"),
    *ignore(IN_THE_MODEL, "orchestrator.model.trust_remote_code"),
    *refuse("has no equivalent: training on images is not supported", "orchestrator.model.vlm"),
    DialectKey(
        "orchestrator.algo.type",
        "algorithm.name",
        "has no equivalent: grpo and max_rl learn from rewards, and opd from a teacher's log-probabilities",
        values={"grpo": "grpo", "opd": "distillation"},
        elsewhere={"max_rl": ("algorithm.advantage", "maxRl")},
    ),
    DialectKey("orchestrator.algo.length_penalty", "algorithm.length_penalty"),
    *(
        DialectKey(f"orchestrator.algo.length_penalty.num_{key}", f"algorithm.length_penalty.{key}")
        for key in ("output_tokens_weight", "input_tokens_weight", "turns_weight")
    ),
    DialectKey(
        "orchestrator.algo.length_penalty.type", None, "has no equivalent: penalties are linear", accepted=("linear",)
    ),
    *refuse(NO_SETTING, "orchestrator.algo.length_penalty.*"),
    DialectKey(
        "orchestrator.training_mode",
        "algorithm.name",
        "has no equivalent: rl learns from rewards, and opd from a teacher's log-probabilities",
        values={"rl": "grpo", "opd": "distillation"},
    ),
    *(row for teacher in ("algo.teacher", "teacher") for row in _teacher(_orchestrator(teacher))),
    DialectKey(
        "orchestrator.algo.sampling.source",
        None,
        "has no equivalent: rollouts are sampled from the trained policy",
        accepted=("policy",),
    ),
    *refuse("has no equivalent: the algorithm has no further settings", "orchestrator.algo"),
    *refuse(
        "has no equivalent: supervised steps train on the environments' demonstrations (algorithm.name sft)",
        "orchestrator.teacher_rollout_model",
    ),
    DialectKey("orchestrator.train.filter_zero_advantages", "algorithm.filter_zero_advantages"),
    *refuse(
        "has no equivalent: difficulty_filter drops groups without a training signal",
        *map(_orchestrator, ("filters", "pre_batch_filters", "post_batch_filters", "advantage")),
    ),
    DialectKey("orchestrator.mask_truncated_completions", "algorithm.mask_truncated"),
    DialectKey(
        "orchestrator.zero_truncated_completions",
        None,
        "has no equivalent: the environment's rewards decide how truncated completions count",
        accepted=(False,),
    ),
    DialectKey("orchestrator.buffer", "buffer"),
    *below("orchestrator.buffer", "buffer", "online_difficulty_filtering", "easy_threshold", "hard_threshold"),
    *below(
        "orchestrator.buffer", "buffer", "easy_fraction", "hard_fraction", "env_ratios", "skip_verification", "seed"
    ),
    *refuse(NO_SETTING, "orchestrator.buffer.*"),
    DialectKey("orchestrator.val", "val"),
    *below("orchestrator.val", "val", "interval", "num_examples", "rollouts_per_example"),
    *refuse(NO_SETTING, "orchestrator.val.*"),
    DialectKey("orchestrator.eval", "eval"),
    *below("orchestrator.eval", "eval", "interval", "num_examples", "rollouts_per_example", "eval_base_model"),
    DialectKey("orchestrator.eval.group_size", "eval.rollouts_per_example"),
    DialectKey("orchestrator.eval.skip_first_step", "eval.eval_base_model", "The value is inverted.", is_inverted=True),
    *ignore("an interrupted evaluation is repeated", "orchestrator.eval.retrigger_on_resume"),
    *refuse(NO_SETTING, "orchestrator.eval.*"),
    *_sampling_overrides("orchestrator.eval.sampling", "eval.sampling"),
    *(row for source in _names("orchestrator.train.source") for row in _trained_on(source)),
    *(row for source in _names("orchestrator.eval.source") for row in _evaluated_on(source)),
    *(row for section in _names("orchestrator.train.sampling") for row in _sampling(section)),
    *refuse(NO_SETTING, "orchestrator.train", "orchestrator.*"),
    # The trainer.
    DialectKey("trainer.max_steps", "max_steps"),
    DialectKey("trainer.model.name", "model"),
    *(row for section in _names("trainer.model.lora") for row in _lora(section)),
    *refuse("has no equivalent: training on images is not supported", "trainer.model.vlm"),
    *refuse("has no equivalent: a run trains the weights of its RLModel", "trainer.model.debug"),
    DialectKey(
        "trainer.model.freeze_moe_router",
        None,
        "has no equivalent: LoRA never trains routers, and full fine-tuning trains all weights",
        accepted=(False,),
    ),
    *ignore(IN_THE_MODEL, "trainer.model", *(f"trainer.model.{key}" for key in OF_PASSES)),
    *ignore("the trainer uses its own precision", *(f"trainer.model.{key}" for key in OF_PRECISION)),
    *refuse("has no equivalent: a run trains the model as described in its files", "trainer.model.index_cache"),
    *refuse(NO_SETTING, "trainer.model.*"),
    DialectKey("trainer.optim.lr", "learning_rate"),
    DialectKey("trainer.optim.weight_decay", "weight_decay"),
    DialectKey("trainer.optim.max_norm", "max_grad_norm"),
    DialectKey("trainer.optim.type", None, "has no equivalent: the optimizer is AdamW", accepted=("adamw",)),
    *(
        DialectKey(
            f"trainer.optim.{key}", None, "the trainer uses its own betas of AdamW", accepted=values, is_ignored=True
        )
        for key, values in (
            ("betas1", (0.9,)),
            ("betas2", (0.95,)),
        )
    ),
    *refuse(NO_SETTING, "trainer.optim", "trainer.optim.*"),
    DialectKey("trainer.scheduler.type", "schedule"),
    DialectKey("trainer.scheduler.warmup_steps", "warmup_steps"),
    DialectKey("trainer.scheduler.decay_steps", "decay_steps"),
    DialectKey("trainer.scheduler.min_lr", "min_learning_rate"),
    *refuse(NO_SETTING, "trainer.scheduler", "trainer.scheduler.*"),
    *below("trainer.loss", "loss", "ratio_type"),
    *(
        DialectKey(f"trainer.loss.{theirs}_{end}", f"loss.{ours}_{end}")
        for theirs, ours in (
            ("token_mask", "ratio"),
            ("geo_mask", "sequence_mean"),
            ("sequence_mask", "sequence_token"),
        )
        for end in ("low", "high")
    ),
    *(
        DialectKey(f"trainer.loss.{key}", None, OTHER_OBJECTIVE, accepted=values)
        for key, values in (
            ("type", ("default",)),
            ("adv_tau", (1, 1.0)),
        )
    ),
    DialectKey("trainer.loss.dppo_mask_low", "loss.dppo.low"),
    DialectKey("trainer.loss.dppo_mask_high", "loss.dppo.high"),
    DialectKey("trainer.loss.kl_tau", "loss.dppo.kl_tau"),
    *refuse(OTHER_OBJECTIVE, "trainer.loss"),
    *refuse("has no equivalent: a run trains only on rollouts", "trainer.data"),
    *refuse("has no equivalent in a run: set environment variables in trainer.env of the RLModel", "trainer.env_vars"),
    *ignore(OF_THE_PLATFORM, *(f"trainer.{key}" for key in OF_THE_TRAINER)),
    DialectKey("trainer.max_async_level", "max_async_level"),
    DialectKey(
        "trainer.enable_router_replay", None, "router replay is not supported", accepted=(False,), is_ignored=True
    ),
    *refuse(NO_SETTING, "trainer.*"),
)
"""Keys in prime-rl's own files. Longer paths take precedence over shorter ones, and names over `*`."""


OWN_TABLES = frozenset(
    {
        "ckpt", "client", "enable_expert_parallel", "enable_lora", "inference_gpu_ids", "max_concurrent_runs",
        "monitors", "optim", "output_dir", "server", "slurm", "train", "trainer_gpu_ids", "vllm", "weight_broadcast",
    }
)  # fmt: skip
"""Top-level keys that only prime-rl's files have."""


def is_prime_rl(table: dict[str, Any]) -> bool:
    """Return whether the table is from a file in prime-rl's own format."""
    evaluation = table.get("eval")
    return (
        is_run(table)
        or isinstance(table.get("model"), dict)
        or not OWN_TABLES.isdisjoint(table)
        or (isinstance(evaluation, dict) and "source" in evaluation)
    )


def is_run(table: dict[str, Any]) -> bool:
    """Return whether a prime-rl file describes a whole run rather than a single process."""
    orchestrator = table.get("orchestrator")
    return isinstance(orchestrator, dict) and bool(orchestrator)
