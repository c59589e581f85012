"""Keys in other trainers' TOML files, with their equivalents in this schema or the reason why there is none.

docs/reference/toml.md shows the tables. The reader refuses a key without an equivalent and reports the reason.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from rlrun.api.toml.dialect_key import DialectKey, same


def _table(name: str, *keys: str) -> Iterable[DialectKey]:
    return same(*(f"{name}.{key}" for key in keys))


NO_OWNER = "has no owner: write owner/name as shown by `rlrun env list`"
"""Problem with an environment whose id has no owner."""
_WORKERS = (
    "has no equivalent: infrastructure.compute_size sets the workers per pod, and replicas in [[env]] the number of "
    "pods"
)
_IN_THE_MODEL = "has no equivalent in a run: the RLModel configures trainer and inference pods"
_LIMIT_OF_CODE = "has no equivalent: pass the limit to the environment's code in args or harness"

SELF_MANAGED = (
    DialectKey("model", "model", "Id of an RLModel in the cluster, whose `source` names the weights."),
    *same("max_steps", "batch_size", "rollouts_per_example"),
    *same("learning_rate", "warmup_steps", "gradient_accumulation_steps", "oversampling_factor", "max_async_level"),
    *same("max_off_policy_steps"),
    *_table("sampling", "max_tokens", "temperature", "top_p", "stop"),
    DialectKey("env.id", "env.id", "For a name without an owner, the namespace is the owner."),
    *_table("env", "args", "taskset", "harness", "weight"),
    *_table("lora", "enabled", "dropout", "target_modules"),
    DialectKey("lora.r", "lora.rank"),
    DialectKey("lora.alpha", "lora_alpha"),
    *_table("difficulty_filter", "enabled", "min_reward_variance", "max_reward", "min_reward"),
    *_table("buffer", "online_difficulty_filtering", "easy_threshold", "hard_threshold"),
    *_table("kl_penalty", "enabled", "target_kl", "beta"),
    DialectKey(
        "loss.clip_ratio_low",
        "loss.ratio_low",
        "Distance of the bound from 1: 0.2 becomes 0.8. Clipping as in PPO needs ratio_limit ppo.",
        convert=lambda distance: 1 - distance,
    ),
    DialectKey(
        "loss.clip_ratio_high",
        "loss.ratio_high",
        "Distance of the bound from 1: 0.28 becomes 1.28. Clipping as in PPO needs ratio_limit ppo.",
        convert=lambda distance: 1 + distance,
    ),
    *_table("wandb", "project", "name", "entity"),
    DialectKey(
        "micro_batch_size",
        None,
        "has no equivalent in a run: trainer.microBatchTokens of the RLModel limits the tokens of a pass",
    ),
    DialectKey(
        "max_concurrent",
        None,
        "has no equivalent for a run: use oversampling_factor, and max_concurrent in [[env]] to limit an environment",
    ),
    DialectKey("workers_per_env", None, _WORKERS),
    *(DialectKey(table, None, _IN_THE_MODEL) for table in ("trainer", "inference", "deployment")),
    DialectKey("orchestrator", None, "has no equivalent: move the settings of this section to the top level"),
    DialectKey("data", None, "has no equivalent: demonstrations come from the environments (algorithm.name sft)"),
)
"""Keys in the documentation of self-managed trainers (prime-rl)."""

HOSTED = (
    DialectKey("env_files", "env_file"),
    DialectKey("eval.skip_first_step", "eval.eval_base_model", "The value is inverted.", is_inverted=True),
    DialectKey(
        "loss",
        "loss.dppo",
        'must be a table of policy-gradient settings. The string "rl" is accepted and means the defaults; for "sft", '
        "set algorithm.name",
        accepted=("rl",),
        values={"dppo": {}},
        is_for_text=True,
    ),
    DialectKey("seq_len", None, "has no equivalent in a run: seqLen of the RLModel sets it"),
    DialectKey("teacher", None, "has no equivalent: algorithm.teacher scores the policy's own rollouts instead"),
    DialectKey(
        "trajectory_strategy",
        "trajectory_strategy",
        "Conversion of turns to training sequences, as in prime-rl. The hosted service documents it as the order of "
        "generation; in rlrun, both values have the same order.",
    ),
    DialectKey("trajectoryStrategy", None, "is not a key of rlrun: use trajectory_strategy"),
    DialectKey(
        "cluster_name", None, "has no equivalent: a run stays in its cluster, on the nodes that its RLModel selects"
    ),
    DialectKey("run_config", None, "has no equivalent: only the keys in docs/reference/toml.md can be set"),
    DialectKey(
        "tailscale", None, "has no equivalent: use egress of [[env]] to list the hosts that the environment connects to"
    ),
    *(
        DialectKey(f"sampling.extra_body.chat_template_kwargs.{key}", f"sampling.{key}")
        for key in ("enable_thinking", "reasoning_effort")
    ),
    DialectKey("sampling.extra_body", None, "has no equivalent: the trainer supports no other sampling parameters"),
    DialectKey("sampling.temp_scheduler", None, "has no equivalent: the temperature is constant during a run"),
    DialectKey(
        "max_inflight_rollouts",
        "oversampling_factor",
        "Divided by batch_size. Must be a whole number from 1 to 16 times batch_size.",
        divisor="batch_size",
    ),
    DialectKey(
        "pre_batch_filters",
        None,
        "has no equivalent: only filters of type zero_advantage with enforce = true are supported",
        accepted=([],),
    ),
    DialectKey(
        "pre_batch_filters.type",
        "difficulty_filter.enabled",
        "has no equivalent: only filters of type zero_advantage with enforce = true are supported",
        values={"zero_advantage": True},
    ),
    DialectKey(
        "pre_batch_filters.enforce",
        None,
        "has no equivalent: only filters of type zero_advantage with enforce = true are supported",
        accepted=(True,),
    ),
    DialectKey(
        "post_batch_filters",
        None,
        "has no equivalent: algorithm.filter_zero_advantages leaves out rollouts with an advantage of 0, and a batch "
        "has no other filter",
        accepted=([],),
    ),
    DialectKey("env.ratio", "env[].weight"),
    DialectKey("env.taskset.id", "env[].id", "Used if the environment has no id.", is_default=True),
    DialectKey("eval.env.taskset.id", "eval.env[].id", "Used if the environment has no id.", is_default=True),
    DialectKey("eval.env.group_size", "eval.env[].rollouts_per_example", "Number of rollouts per example."),
    DialectKey("env.timeout", None, "is not a key of rlrun: use rollout_timeout_seconds"),
    DialectKey(
        "env.group_size",
        None,
        "has no equivalent: rollouts_per_example applies to all environments",
        same_as="rollouts_per_example",
    ),
    DialectKey("env.pool", None, _WORKERS),
    DialectKey("env.multiplex", None, _WORKERS),
    *(
        DialectKey(
            f"env.{key}", None, "has no equivalent: failed rollouts are not trained on; retry in the environment's code"
        )
        for key in ("retries", "max_retries")
    ),
    *(
        DialectKey(f"env.{key}", None, _LIMIT_OF_CODE)
        for key in ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens")
    ),
    *(DialectKey(key, None, _IN_THE_MODEL) for key in ("gpu_type", "volume", "volume_size")),
    DialectKey(
        "source_ref", None, "has no equivalent: the chart's images contain the code of trainer and orchestrator"
    ),
)
"""Keys in files for Prime Intellect's hosted service (clients prime 0.6.0 and 0.12.0) that rlrun lacks or that have a
different meaning.
"""


FOR_EVALUATION = tuple(
    replace(row, key=f"eval.{row.key}")
    for row in HOSTED
    if row.key.startswith("env.") and row.equivalent is None and f"eval.{row.key}" not in {r.key for r in HOSTED}
)
"""Rows that refuse or ignore keys of evaluation environments, for the same reasons as in training environments."""


def refusal(path: str) -> str | None:
    """Return why the key at a path such as `env[0].pool` is refused, or None if the key is not in a table of refused
    keys.
    """
    key = re.sub(r"\[\d+\]", "", path)
    rows = (*SELF_MANAGED, *HOSTED, *FOR_EVALUATION)
    return next((row.remark for row in rows if row.key == key and row.equivalent is None), None)
