"""Selects the layers of a model that get an adapter.

A name in `targetModules` selects the linear layers of the decoder whose full name ends with it. `all-linear` selects
every linear layer that the trainer can train and vLLM can serve. `experts` selects the routed experts. `all-linear`
excludes them, because their adapters are many times larger and vLLM's CPU engine serves none of them. No name selects a
router. Three other kinds of layers are not selected either: the indexer of a sparse attention, which gets no gradient;
layers with a non-standard computation; and layers whose adapter vLLM 0.32 ignores or computes differently.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError

from rlrun_trainer.artifacts.checkpoint_facts import ALL_LINEAR
from rlrun_trainer.artifacts.checkpoint_names import CheckpointNames
from rlrun_trainer.model.decoder import decoder_of
from rlrun_trainer.model.expert_layer import ExpertLayer, has_known_form, parameter_names
from rlrun_trainer.model.row_layout import mixing_layers

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Configuration fields with the number of routed experts."""
EXPERTS = "experts"
"""Target module that selects the routed experts."""
EXPERT = "layers of routed experts"
UNKNOWN_EXPERTS = "routed experts with a non-standard computation"
UNSERVED_EXPERTS = "routed experts that the model's files store in a form for which vLLM accepts no adapter"
ROUTER = "a router or gate"
ABSORBED = "a projection that vLLM merges into its attention, where adapters are ignored"
OUTSIDE = "not a layer of the language model"
INDEXER = "a layer that chooses tokens for sparse attention, which gets no gradient"
DIRECT = "a layer whose weights are read directly by kernels of the engine or the trainer, which bypass its adapter"
CONVERTED = "a layer that the model's files store in another form, so that the engine cannot assign an adapter to it"
UNNAMED = "a shared expert that vLLM lists inside the routed experts, where it can get no adapter"
KEYS_ONLY = "a projection that computes both keys and values, to which vLLM applies an adapter for the keys only"
REORDERED = (
    "a projection whose rows vLLM reorders when it loads the weights, without reordering the rows of its adapter"
)
JOINED = "a projection that joins gate and up, for which vLLM accepts only separate adapters"
WITHOUT_ADAPTERS = frozenset({"kimi_linear", "kimi_k25", "mimo_v2_flash", "minimax_m3_vl"})
"""Values of `model_type` whose models in vLLM 0.32 lack the interface `SupportsLoRA`."""
NAMES_OF_EXPERTS = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Module names that peft treats as routed experts or their router in a mixture of experts."""


@dataclass(frozen=True)
class LinearLayers:
    """Linear layers of a model, by full name."""

    served: tuple[str, ...]
    """Layers that can be trained and served."""
    named: tuple[str, ...]
    """Layers that get an adapter only if `targetModules` names them, such as the output head."""
    refused: Mapping[str, str]
    """Layers that get no adapter, with the reason."""
    routed: tuple[str, ...]
    """Parameters of routed experts that can be trained and served."""
    experts: bool
    """True for a mixture of experts."""
    kinds: int
    """Number of kinds of token-mixing layers that are distinguished: 2 if some layers may mix the samples of a row
    (`mixing_layers`), such as convolutions, otherwise 1.
    """


def linear_layers(model: Any, stored: CheckpointNames, *, joined: bool) -> LinearLayers:
    """Return the linear layers of a transformers model, which may already have adapters. `stored` are the names in the
    model's files. `joined` is True if the engine accepts joined adapters for experts.
    """
    config = model.config.get_text_config()
    experts = any(getattr(config, field, None) for field in EXPERT_COUNTS)
    head, decoder = model.get_output_embeddings(), {id(module) for module in decoder_of(model).modules()}
    served, named, refused = [], [], {}
    routed: list[str] = []
    for full, module in model.named_modules():
        if full.removesuffix(".base_layer").endswith(f".{EXPERTS}") and id(module) in decoder:
            name = full.removesuffix(".base_layer")
            if isinstance(module, ExpertLayer):
                continue
            if (why := _experts_refusal(module, name, stored, joined=joined)) is not None:
                refused[name] = why
            else:
                routed += [f"{name}.{parameter}" for parameter in parameter_names(module)]
        if not isinstance(module, torch.nn.Linear) or ".lora_" in full:
            continue
        name = full.removesuffix(".base_layer")
        if module is head or getattr(head, "base_layer", None) is module:
            named.append(name)
        elif id(module) not in decoder:
            refused[name] = OUTSIDE
        elif (why := _refusal(model, name, module) or (CONVERTED if stored.lack(name) else None)) is not None:
            refused[name] = why
        else:
            served.append(name)
    types = getattr(config, "layer_types", None)
    return LinearLayers(tuple(served), tuple(named), refused, tuple(routed), experts, 2 if mixing_layers(types) else 1)


def check_served(model_type: str) -> None:
    """Raise ProblemError (AdapterInvalid) if the engine serves no adapters for models with this `model_type`."""
    if model_type in WITHOUT_ADAPTERS:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.ADAPTER_INVALID,
            f"vLLM 0.32 serves no adapters for models with `model_type` {model_type}. Set `lora.enabled` to false to "
            "train all weights, or use another model.",
        )


def resolve(targets: Sequence[str], layers: LinearLayers) -> tuple[str, ...]:
    """Return the full names of the layers that `targets` select, sorted. Raises ProblemError (AdapterInvalid)."""
    chosen: set[str] = set()
    unknown = []
    for target in targets:
        if target == EXPERTS:
            modules: Sequence[str] = layers.routed
        else:
            modules = layers.served if target == ALL_LINEAR else _ending(target, (*layers.served, *layers.named))
        chosen.update(modules)
        if not modules:
            unknown.append(target)
    if unknown:
        raise _unknown(unknown, layers)
    return tuple(sorted(chosen))


def missed_layers(chosen: Iterable[str], layers: LinearLayers) -> dict[str, tuple[tuple[str, ...], int]]:
    """Return the blocks without any adapter, grouped by the last part of their names. Each entry has the names of the
    blocks' linear layers and the number of blocks.
    """
    adapted = {name.rpartition(".")[0] for name in chosen}
    missed: dict[str, tuple[set[str], set[str]]] = {}
    for name in layers.served:
        block, _, leaf = name.rpartition(".")
        if block not in adapted:
            leaves, blocks = missed.setdefault(block.rpartition(".")[2], (set(), set()))
            leaves.add(leaf)
            blocks.add(block)
    return {kind: (tuple(sorted(leaves)), len(blocks)) for kind, (leaves, blocks) in missed.items()}


def warning(chosen: Iterable[str], layers: LinearLayers) -> Problem | None:
    """Return a warning if the model has several kinds of token-mixing layers and some blocks have no adapter. Otherwise
    returns None.
    """
    missed = missed_layers(chosen, layers)
    if layers.kinds == 1 or not missed:
        return None
    blocks = "; ".join(f"{count} of {kind} ({', '.join(leaves)})" for kind, (leaves, count) in missed.items())
    return Problem(
        reason=Reason.LORA_TARGETS_INCOMPLETE,
        message=f"`lora.targetModules` selects no layer in these blocks, which stay as in the base model: {blocks}. "
        "Write `all-linear`, or add these names. If this is intended, ignore this warning.",
    )


def file_targets(chosen: Iterable[str], every: Iterable[str], experts: bool) -> tuple[list[str], list[str]]:
    """Return target modules and parameters with which stock peft finds exactly the chosen layers: the last one or two
    parts of each name, or the full name if these are ambiguous.

    In a mixture of experts, layers whose last name part is in NAMES_OF_EXPERTS are listed by their weight parameters,
    because peft replaces modules with such names by the routed experts but leaves parameters unchanged. `every` are the
    names of all linear layers.
    """
    wanted, others = set(chosen), set(every) - set(chosen)
    modules: set[str] = set()
    parameters: set[str] = set()
    for name in wanted:
        parts = name.split(".")
        ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        is_parameter = experts and parts[-1] in NAMES_OF_EXPERTS
        short = next((end for end in ends[1 if is_parameter else 0 : 2] if not _ending(end, others)), name)
        (parameters if is_parameter else modules).add(f"{short}.weight" if is_parameter else short)
    return sorted(modules), sorted(parameters)


def _unknown(targets: Sequence[str], layers: LinearLayers) -> ProblemError:
    reasons = dict.fromkeys(layers.refused[name] for target in targets for name in _ending(target, layers.refused))
    why = "; ".join(reasons) or "not linear layers of this model"
    if layers.experts:
        why += ". Routers get no adapter" + (", and routed experts only by the name `experts`" if layers.routed else "")
    leaves = sorted({name.rpartition(".")[2] for name in layers.served})
    return ProblemError.of(
        UNPROCESSABLE,
        Reason.ADAPTER_INVALID,
        f"`lora.targetModules` has {', '.join(targets)}: {why}. Write `all-linear` for all layers that can be trained "
        f"and served, or choose from {', '.join(leaves)}.",
    )


def _ending(target: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name == target or name.endswith(f".{target}")]


def _experts_refusal(module: Any, name: str, stored: CheckpointNames, *, joined: bool) -> str | None:
    if not has_known_form(module):
        return UNKNOWN_EXPERTS
    known = stored.experts.get(name)
    if known is None or not (joined or set(parameter_names(module)) <= known.projections.keys()):
        return UNSERVED_EXPERTS
    return None


def _refusal(model: Any, name: str, layer: torch.nn.Linear) -> str | None:
    parts = name.split(".")
    block = model.get_submodule(name.rpartition(".")[0])
    if "experts" in parts:
        return EXPERT
    if "router" in parts or hasattr(block, "experts"):
        return ROUTER
    if "indexer" in parts:
        return INDEXER
    if parts[-1] == "kv_b_proj":
        return ABSORBED
    if parts[-1] in ("dt_proj", "out_proj") and hasattr(block, "A_log") and hasattr(block, "D"):
        return DIRECT
    # vLLM multiplies by the weights of DeepSeek V4's compressor without calling the layer.
    if "compressor" in parts:
        return DIRECT
    family = model.config.get_text_config().model_type
    # vLLM has no model of its own for this family and wraps the model of transformers. There the routed experts come
    # first and contain the shared experts, so vLLM registers the latter only as `experts._shared_experts...`.
    if family == "mistral4" and "shared_experts" in parts:
        return UNNAMED
    if family == "glm4" and parts[-1] == "gate_up_proj":
        return JOINED
    # vLLM computes rotary embeddings by halves of a head, but the checkpoint's weights are ordered for pairs.
    if family == "llama4_text" and parts[-1] in ("q_proj", "k_proj"):
        return REORDERED
    # Gemma 4's `attention_k_eq_v`: vLLM loads the weights into two slices of its layer, the adapter into one.
    if parts[-1] == "k_proj" and getattr(block, "v_proj", layer) is None:
        return KEYS_ONLY
    # A subclass may compute something else, such as DeepSeek V4's block-diagonal projection.
    return None if type(layer) is torch.nn.Linear else f"a {type(layer).__name__}, which adapters do not support"
