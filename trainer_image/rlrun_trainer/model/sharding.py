"""Sharding with FSDP2: every process holds a part of each weight and gathers a layer only while computing it.

With `shard_size`, each group of processes holds all weights (HSDP), and FSDP also sums gradients over the groups.

Each decoder layer is a unit. Embeddings, last norm and head form the root unit, which stays gathered until the end of
the backward pass, because the head is used in between. Adapters are added later and are small, so they are not sharded.

If possible, a model is sharded before its weights are read, so that each process reads only its parts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.service.errors import ProblemError
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig

from rlrun_trainer.model.decoder import DECODE, add_decode, decoder_of


@contextmanager
def before_reading(prepare: Callable[[Any], None]) -> Iterator[dict[str, Any]]:
    """Context in which `from_pretrained` calls `prepare` with the model before it reads the weights. Yields arguments
    for `from_pretrained`.

    When `prepare` is called, the model's parameters have no memory. Each process reads only its part of each parameter
    that `prepare` shards.

    This context replaces the method in which transformers shards a model, because transformers would use different
    units from `shard`.
    """

    def prepared(cls: type, model: Any, *unused: Any) -> Any:
        prepare(model)
        return model

    PreTrainedModel.maybe_distribute_model = classmethod(prepared)
    try:
        yield {"distributed_config": DistributedConfig()}
    finally:
        del PreTrainedModel.maybe_distribute_model


def mesh_of(device: torch.device, size: int, shard_size: int | None) -> DeviceMesh:
    """Return the mesh of `size` processes. All processes must call it.

    Each group of `shard_size` consecutive processes holds one copy of the weights. If `shard_size` is None, all
    processes form one group. Raises ProblemError if `shard_size` does not divide `size`.
    """
    shape = mesh_shape(size, shard_size)
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])


def is_sharded(model: Any) -> bool:
    """Return True if the model is sharded."""
    return isinstance(model, FSDPModule)


def shard(model: Any, mesh: DeviceMesh, compute: torch.dtype, dtypes: set[torch.dtype]) -> None:
    """Shard the model in place. The model then computes in the dtype `compute`. `dtypes` are the dtypes of its weights.
    Raises ProblemError (ModelUnsupported) if it has no list of decoder layers.
    """
    layers = getattr(decoder_of(model), "layers", None)
    if not layers:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.MODEL_UNSUPPORTED,
            f"{type(model).__name__} has no list of decoder layers to shard. Use one GPU.",
        )
    add_decode(model)
    same = dtypes == {compute}
    policy = MixedPrecisionPolicy(None if same else compute, None if same else torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    origin = type(model).__module__
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    # transformers considers classes of other packages custom code, and does not compute their buffers.
    type(model).__module__ = origin
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
            f"The trainer has {size} processes, which is not a multiple of trainer.shardSize {shard_size}. Set the "
            f"RLModel's trainer.shardSize to a divisor of {size}.",
        )
    return (size // shard_size, shard_size)


def reshard(model: Any) -> None:
    """Reshard all weights, so that the model's parameters are the tensors that are stored and trained."""
    if is_sharded(model):
        model.reshard()
