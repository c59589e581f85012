"""FSDP2: every process holds a part of each weight, and has a layer whole only while it computes it.

Each decoder layer is a unit; embeddings, last norm and head form the outermost one, which stays whole from the forward
pass to the end of the backward pass, because the head is used in between. Adapters come later and are not sharded:
they are small, and so each process has them whole.
"""

from typing import Any

import torch
from rlrun.service.errors import ProblemError
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from rlrun_trainer.problems import UNPROCESSABLE

DECODE = "rlrun_decode"
"""The model's method that gives last hidden states, sharded or not."""


def shard(model: Any, device: torch.device, size: int, compute: torch.dtype) -> None:
    """Spreads the model over `size` processes, in place; it computes in `compute` whatever its weights are kept in."""
    layers = getattr(model.get_decoder(), "layers", None)
    if not layers:
        raise ProblemError.of(
            UNPROCESSABLE,
            "ModelUnsupported",
            f"{type(model).__name__} has no list of decoder layers to spread over processes: use one GPU",
        )
    mesh = init_device_mesh(device.type, (size,))
    same = all(parameter.dtype == compute for parameter in model.parameters())
    policy = MixedPrecisionPolicy(None if same else compute, None if same else torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sums, not means: the loss is divided by the tokens of the whole batch already.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    # Forward passes begin at the decoder, and FSDP has to notice.
    register_fsdp_forward_method(model, DECODE)


def at_rest(model: Any) -> None:
    """Leaves every weight in parts, whatever ran before: only then parameters are what is stored and trained."""
    if isinstance(model, FSDPModule):
        model.reshard()
