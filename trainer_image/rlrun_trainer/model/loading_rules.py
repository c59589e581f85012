"""Rules by which transformers loads a model: names of weights, conversions and precision.

With FSDP, transformers cuts each stored weight along its first dimension while reading it, and converts the part
(https://github.com/huggingface/transformers/blob/main/src/transformers/distributed/sharding_utils.py). The result
equals the same part of the converted weight only if the conversion keeps the first dimension.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    build_glob_alternation,
    rename_source_key,
)

from rlrun_trainer.artifacts.checkpoint_names import CheckpointNames


class LoadingRules:
    """Rules for one model. The model must not be sharded yet, and its weights need no memory yet."""

    def __init__(self, model: Any) -> None:
        rules = get_model_conversion_mapping(model)
        self._model = model
        self._own = model.state_dict()
        self._renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        self._converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        self._by_pattern = {pattern: rule for rule in self._converters for pattern in rule.source_patterns}

    def names(self, stored: Iterable[str]) -> CheckpointNames:
        """Return the names of the model's layers in files that contain the tensors `stored`."""

        def in_memory(weight: str) -> str | None:
            name, pattern = self._target(weight)
            return None if pattern in self._by_pattern else name

        def joined(weight: str) -> tuple[str, int]:
            name, pattern = self._target(weight)
            converter = self._by_pattern.get(pattern)
            return name, converter.source_patterns.index(pattern) if converter else 0

        return CheckpointNames.of(stored, in_memory, joined)

    def allow_parts(self, stored: Mapping[str, Sequence[int]], processes: int) -> bool:
        """Return True if each of `processes` can read only its own part of every weight. `stored` has the shapes of the
        weights in the files, by name.

        Returns False unless the files contain all of the model's weights in its shapes, because transformers
        initializes missing weights with collective operations if the model is sharded.
        """
        if any(getattr(config, "quantization_config", None) for config in self._configs()):
            return False
        sizes: dict[str, int] = {}
        for weight, shape in stored.items():
            name, pattern = self._target(weight)
            converter = self._by_pattern.get(pattern)
            if name not in self._own:
                # As in transformers: ignore weights of another model, such as one that predicts several tokens.
                continue
            if converter is None and tuple(shape) != tuple(self._own[name].shape):
                return False
            if converter is not None and not self._keeps_rows(converter, name, processes):
                return False
            sizes[name] = sizes.get(name, 0) + math.prod(shape)
        tied = self._model.all_tied_weights_keys
        # FSDP treats tied weights as one, and transformers unties them if the files contain both and they differ.
        if any(name in sizes and other in sizes for name, other in tied.items()):
            return False
        present = {name for pair in tied.items() if sizes.keys() & set(pair) for name in pair}
        return all(name in present or sizes.get(name) == tensor.numel() for name, tensor in self._own.items())

    def dtypes(self, dtype: torch.dtype) -> set[torch.dtype]:
        """Return the dtypes of the parameters if the model is loaded in `dtype`. Some parameters stay in float32."""
        plan = self._model._get_dtype_plan(dtype)
        precise = build_glob_alternation(list(plan))[0] if plan else None
        return {
            torch.float32 if precise is not None and precise.search(name) else parameter.dtype
            for name, parameter in self._model.named_parameters()
        }

    def _configs(self) -> tuple[Any, ...]:
        return self._model.config, self._model.config.get_text_config()

    def _target(self, stored: str) -> tuple[str, str | None]:
        """Return a stored weight's name in memory, and the source pattern of the rule that merges or splits the weight,
        or None if there is no such rule.
        """
        model, own = self._model, self._own
        name, pattern = rename_source_key(stored, self._renamings, self._converters, model.base_model_prefix, own)
        if name not in own and stored in own:
            # As in transformers: the rules are for other files of this family.
            return stored, None
        return str(name), pattern

    def _keeps_rows(self, converter: WeightConverter, name: str, processes: int) -> bool:
        for operation in converter.operations:
            if isinstance(operation, MergeModulelist) and operation.dim == 0:
                # Each process merges its own experts, and must have at least one.
                experts = len(self._own[name])
                share = -(-experts // processes)
                if share * (processes - 1) >= experts:
                    return False
            elif not (isinstance(operation, Concatenate) and operation.dim > 0):
                return False
        return True
