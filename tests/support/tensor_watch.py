"""Count of the large tensors that operators of torch return."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override


class TensorWatch(TorchDispatchMode):  # type: ignore[misc]
    """Context that counts storages of at least `size` bytes. What an operator allocates within itself is not seen."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.made: list[str] = []
        """Operators that returned a new large tensor, with its shape."""
        self.most = 0
        """Largest number of such tensors at one time."""
        self._size = size
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or tensor.untyped_storage()._cdata in inputs:
                continue
            storage = tensor.untyped_storage()
            if storage.nbytes() >= self._size:
                self.made.append(f"{func} {tuple(tensor.shape)}")
                self._alive[storage._cdata] = weakref.ref(storage)
        self._alive = {key: ref for key, ref in self._alive.items() if ref() is not None}
        self.most = max(self.most, len(self._alive))
        return result
