"""vLLM's layer of the head, with and without adapters that have weights for it."""

from typing import Any

import pytest
from rlrun_engine_access.head_adapters import omit_unused_kernels


class Kernels:
    def __init__(self) -> None:
        self.calls = 0

    def add_lora_logits(self, logits: list[float], *_: Any) -> list[float]:
        self.calls += 1
        return [value + 1.0 for value in logits]


def make_layer() -> Any:
    """An object with the methods of vLLM's layer that the plugin uses, whose class is changed."""

    class Layer:
        def __init__(self) -> None:
            self.punica_wrapper: Any = Kernels()
            self.is_broken = False

        def reset_lora(self, index: int) -> None:
            pass

        def set_lora(self, index: int, lora_a: Any, lora_b: Any) -> None:
            self.reset_lora(index)

        def _get_logits(self, rows: list[float], scale: float = 1.0) -> Any:
            if self.is_broken:
                raise RuntimeError
            return self.punica_wrapper.add_lora_logits([scale * row for row in rows], rows)

    for _ in range(2):
        omit_unused_kernels(Layer)
    return Layer()


def test_the_kernels_run_only_while_an_adapter_has_weights_for_the_head() -> None:
    layer, other = make_layer(), make_layer()
    kernels = layer.punica_wrapper
    layer.reset_lora(0)
    assert layer._get_logits([1.0], scale=2.0) == [2.0]
    for index in (0, 1):
        layer.set_lora(index, None, None)
    layer.reset_lora(1)
    assert layer._get_logits([1.0]) == [2.0]
    assert other._get_logits([1.0]) == [1.0]
    layer.reset_lora(0)
    assert layer._get_logits([1.0]) == [1.0]
    assert (kernels.calls, layer.punica_wrapper) == (1, kernels)


def test_an_error_leaves_the_kernels_in_place() -> None:
    layer = make_layer()
    kernels, layer.is_broken = layer.punica_wrapper, True
    with pytest.raises(RuntimeError):
        layer._get_logits([1.0])
    assert layer.punica_wrapper is kernels
