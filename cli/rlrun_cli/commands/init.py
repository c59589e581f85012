"""Command `init`: creates a commented config file, which is valid once its model and environment ids are set."""

from pathlib import Path
from typing import Annotated

import typer

from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

INIT_EPILOG = """Examples:

  rlrun init
  rlrun init experiments/reverse.toml
  rlrun init --demo demo.toml && rlrun run demo.toml --follow
  rlrun init - | grep max_steps

--demo writes a run that the local cluster of this project can start unchanged: its small model learns to reverse text \
in about a minute on two CPU cores."""

TEMPLATE = """\
# A reinforcement-learning run. Start it with:  rlrun run {file} --follow
# Uncomment a line to set it. The values are the defaults; fields without a default show an example.

# name = "my-first-run"              # display name of the run
model = "Qwen/Qwen3-4B"              # model id, as listed by `rlrun models`
max_steps = 100                      # optimizer steps
batch_size = 128                     # rollouts per step; a multiple of rollouts_per_example
rollouts_per_example = 8             # rollouts of one example; their mean reward is the baseline

# learning_rate = 1e-4
# lora_alpha = 16
# trajectory_strategy = "interleaved"  # or "branching": one training sequence per turn
# oversampling_factor = 2.0          # rollouts in flight, relative to batch_size
# max_async_level = 2                # steps that rollouts may run ahead of the trainer; >= oversampling_factor
# max_off_policy_steps = 8           # maximum age in steps of a trained token; >= max_async_level
# checkpoint_id = "my-first-run-step-100"  # start from this checkpoint (rlrun checkpoints)

# Files with NAME=value lines; paths are relative to this file. Only the environment pods get these variables.
# env_file = ["secrets.env"]

[sampling]
max_tokens = 512                     # maximum number of tokens per turn
# temperature = 1.0

# Environments to train on: packages uploaded with `rlrun env push`. Several [[env]] sections train on a mixture.
[[env]]
id = "your-team/your-environment"    # owner/name
# name = "reversing"                 # in metrics and logs; default: the part after the slash
# args = {{ split = "train" }}         # arguments of the package's load_environment(); never a password

# Evaluate on separate environments during training.
# [eval]
# interval = 100                     # steps between evaluations
# num_examples = -1                  # -1: all
# rollouts_per_example = 1
# eval_base_model = true             # also evaluate once before training
#
# [[eval.env]]
# id = "your-team/your-environment"
# args = {{ split = "test" }}

# Validate on held-out examples of the training environments.
# [val]
# interval = 5
# num_examples = 64
# rollouts_per_example = 1

# Prefer examples of medium difficulty.
# [buffer]
# online_difficulty_filtering = true
# easy_threshold = 0.8               # examples with at least this mean reward are easy
# hard_threshold = 0.2               # examples with at most this mean reward are hard

# [wandb]
# project = "my-project"             # default: the namespace; requires: rlrun run {file} -e WANDB_API_KEY

# [checkpoints]
# interval = 50                      # steps between checkpoints; the last step always saves one
# keep_cloud = 5                     # number of newest ones to keep; -1 keeps all

# [adapters]
# interval = 0                       # steps between adapters; 0: only after the last step
# keep_last = 3                      # number of newest ones to keep; -1 keeps all

# [infrastructure]
# compute_size = "M"                 # S, M or L: CPU and memory of the environment pods
"""


DEMO = """\
# A tiny model learns to reverse text. Start it with:  rlrun run {file} --follow
# The model and the environment are part of rlrun's local cluster.
name = "reverse-text"
model = "rlrun/reverse-text-tiny"
max_steps = 30                       # optimizer steps
batch_size = 128                     # rollouts per step
rollouts_per_example = 8             # rollouts of one example; their mean reward is the baseline
learning_rate = 1e-3
lora_alpha = 32
oversampling_factor = 1.0
max_async_level = 1

[sampling]
max_tokens = 24                      # maximum number of tokens per turn
temperature = 1.0

[[env]]
id = "rlrun/reverse-text"
args = {{ num_examples = 2000, min_length = 5, max_length = 10 }}

[checkpoints]
interval = 10                        # steps between checkpoints
keep_cloud = 3

[adapters]
interval = 15                        # steps between adapters
keep_last = 3
"""
STDOUT = Path("-")


def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="File to create, or - for standard output.")] = Path(
        "rl.toml"
    ),
    demo: Annotated[
        bool, typer.Option("--demo", help="Use the model and environment of the project's local cluster.")
    ] = False,
) -> None:
    """Create a commented config file. Never overwrites a file."""
    template = DEMO if demo else TEMPLATE
    if file == STDOUT:
        typer.echo(template.format(file="rl.toml"), nl=False)
        return
    create_file(file, template.format(file=file))
    typer.echo(str(file))
    first = "" if demo else f"set model and [[env]] id in {file}, then: "
    output.notice(f"Next: {first}rlrun run {file} --follow")


def create_file(file: Path, text: str) -> None:
    """Create a file and its parent folders. Raises CliError if the file exists or cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        what = f"{file} already exists" if file.exists() else f"a parent folder of {file} is a file"
        raise CliError(what, "specify a different path, or delete that file", code=INVALID) from None
    except OSError as problem:
        raise CliError(
            f"{file} cannot be written: {problem.strerror}", "specify a file in a writable folder", code=INVALID
        ) from problem
