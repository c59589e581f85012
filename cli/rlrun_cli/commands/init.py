"""`rlrun init`: a config that explains itself and trains as it is, once the two ids in it are yours."""

from pathlib import Path
from typing import Annotated

import typer

from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

EPILOG = """Examples:

  rlrun init

  rlrun init experiments/reverse.toml"""

TEMPLATE = """\
# A reinforcement-learning run. Start it with:  rlrun run {file} --follow
# Lines that begin with a single # can be switched on; each shows its default, or an example where there is none.

# name = "my-first-run"              # what people call the run
model = "Qwen/Qwen3-4B"              # an id that `rlrun models` lists
max_steps = 100                      # optimizer steps
batch_size = 128                     # rollouts per step; a multiple of rollouts_per_example
rollouts_per_example = 8             # rollouts of one example: their mean reward is the baseline

# learning_rate = 1e-4
# lora_alpha = 16
# trajectory_strategy = "interleaved"  # or "branching": every turn is a training sequence of its own
# oversampling_factor = 2.0          # rollouts in flight, relative to batch_size
# max_async_level = 2                # how many steps old a rollout's policy may be; >= oversampling_factor
# checkpoint_id = "my-first-run-step-100"  # start from this checkpoint (rlrun checkpoints)

# Files of NAME=value lines, beside this file. They become variables of the environments' pods and of nothing else.
# env_file = ["secrets.env"]

[sampling]
max_tokens = 512                     # tokens the model may answer with, in each turn
# temperature = 1.0

# What to train on: packages that `rlrun env push` has put in place. Several [[env]] sections train on a mixture.
[[env]]
id = "your-team/your-environment"    # owner/name
# name = "reversing"                 # needed when the same id is used twice
# args = {{ split = "train" }}         # arguments of the package's load_environment(); never a password

# Evaluate on environments of their own while training.
# [eval]
# interval = 100                     # steps between evaluations
# num_examples = -1                  # -1: all
# rollouts_per_example = 1
# eval_base_model = true             # once before training, too
#
# [[eval.env]]
# id = "your-team/your-environment"
# args = {{ split = "test" }}

# Watch held-out examples of the training environments.
# [val]
# interval = 5
# num_examples = 64
# rollouts_per_example = 1

# Prefer examples that are neither too easy nor too hard.
# [buffer]
# online_difficulty_filtering = true
# easy_threshold = 0.8               # mean reward from which an example counts as easy
# hard_threshold = 0.2               # mean reward up to which an example counts as hard

# [wandb]
# project = "my-project"             # then also: rlrun run {file} -e WANDB_API_KEY

# [checkpoints]
# interval = 50                      # steps between checkpoints; the last step always has one
# keep_cloud = 5                     # newest to keep; -1 keeps all

# [adapters]
# interval = 0                       # steps between adapters; 0: only at the end
# keep_last = 3                      # newest to keep; -1 keeps all

# [infrastructure]
# compute_size = "M"                 # S, M or L: CPU and memory of the environments' pods
"""


def init(file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write it.")] = Path("rl.toml")) -> None:
    """Write a commented config to start from. Never overwrites a file."""
    try:
        with file.open("x", encoding="utf-8") as target:
            target.write(TEMPLATE.format(file=file))
    except FileExistsError:
        raise CliError(f"{file} exists already", "name another file, or remove that one first", code=INVALID) from None
    except OSError as problem:
        raise CliError(f"{file} cannot be written: {problem.strerror}", code=INVALID) from problem
    typer.echo(str(file))
    output.say(f"Next: set model and [[env]] id in {file}, then: rlrun run {file} --follow")
