"""Sharding with FSDP2: every process holds a part of each weight and gathers a layer only while computing it.

With `shard_size`, each group of processes holds all weights (HSDP), and FSDP also sums gradients over the groups.

Each decoder layer is a unit. Embeddings, last norm and head form the root unit, which stays gathered until the end of
the backward pass, because the head is used in between. Adapters are added later and are small, so they are not sharded.
"""

from typing import Any

import torch
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.service.errors import ProblemError
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from rlrun_trainer.model.decoder import DECODE, decoder_of


def shard(model: Any, device: torch.device, size: int, shard_size: int | None, compute: torch.dtype) -> None:
    """Shard the model in place. The model then computes in the dtype `compute`, regardless of its weights' dtype.

    `size` is the number of processes. Each group of `shard_size` consecutive processes holds one copy of the weights.
    If `shard_size` is None, all processes form one group.
    """
    layers = getattr(decoder_of(model), "layers", None)
    if not layers:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.MODEL_UNSUPPORTED,
            f"{type(model).__name__} has no list of decoder layers to shard. Use one GPU.",
        )
    shape = mesh_shape(size, shard_size)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    same = all(parameter.dtype == compute for parameter in model.parameters())
    policy = MixedPrecisionPolicy(None if same else compute, None if same else torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sum instead of averaging, because the loss is already divided by the tokens of the whole batch.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    # Forward passes start at the decoder, where FSDP must gather the root unit.
    register_fsdp_forward_method(model, DECODE)


def mesh_shape(size: int, shard_size: int | None) -> tuple[int, ...]:
    """Return the shape of the process mesh: the number of replicas, if more than one, and the number of shards.

    Raises ProblemError if `shard_size` does not divide `size`.
    """
    if shard_size is None or shard_size == size:
        return (size,)
    if size % shard_size:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.MODEL_UNSUPPORTED,
            f"The trainer has {size} processes, which is not a multiple of trainer.shardSize {shard_size}. Correct "
            "the RLModel's trainer.shardSize.",
        )
    return (size // shard_size, shard_size)


def reshard(model: Any) -> None:
    """Reshard all weights, so that the model's parameters are the tensors that are stored and trained."""
    if isinstance(model, FSDPModule):
        model.reshard()
