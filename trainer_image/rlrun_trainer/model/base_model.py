"""Frozen base model with K adapter slots, or with one run that trains all weights.

A slot contains the training state of one run: LoRA parameters, AdamW's moments, the random state and the number of
updates. Exactly one slot is active during a step, and a step changes no state outside of its slot, so runs that share
the model do not affect each other's results, bit for bit. A run that trains all weights uses the model exclusively.
"""

import gc
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from peft import LoraConfig
from rlrun.constants import LATER, UNPROCESSABLE, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError

from rlrun_trainer.artifacts.model_folder import ModelClass
from rlrun_trainer.model import attention_choice, row_layout
from rlrun_trainer.model.adapter_layer import Adapted, Factors, activate, add_adapter_layer
from rlrun_trainer.model.adapter_targets import check_served, file_targets, linear_layers, resolve, warning
from rlrun_trainer.model.decoder import DECODE
from rlrun_trainer.model.device_memory import refuses_without_memory
from rlrun_trainer.model.expert_format import JOINED_ARCHITECTURES, ExpertFormat
from rlrun_trainer.model.expert_layer import add_expert_layer
from rlrun_trainer.model.failure_guard import FailureGuard
from rlrun_trainer.model.loader import Loader
from rlrun_trainer.model.peft_format import AdapterShape, adapter_files, tensor_name
from rlrun_trainer.model.sharding import reshard
from rlrun_trainer.runtime.process_group import ProcessGroup, copy_into, full_tensor
from rlrun_trainer.runtime.settings import TrainerSettings

Head = Callable[[torch.Tensor], torch.Tensor]
"""Function that maps hidden states [N, hidden] to logits [N, vocabulary]."""


log = logging.getLogger(__name__)

BETAS = (0.9, 0.95)
EPSILON = 1e-8
CHECK_TOKENS = 8
TRY_OTHER_ATTENTION = frozenset({Reason.MODEL_UNSUPPORTED, Reason.SAMPLES_NOT_SEPARATED})
"""Reasons of problems that another implementation of attention may avoid."""
RANK_STRIDE = 1_000_003
"""Difference between the random seeds of processes with consecutive ranks."""


class Reference(StrEnum):
    """Reference weights of a KL penalty."""

    pending = "pending"
    """Not fixed yet: the weights before the first reinforcement learning step, which has not started."""
    base = "base"
    """Weights of the base model."""
    copy = "copy"
    """Frozen copy: `AdapterSlot.copied`, or `BaseModel.start` for all weights."""


@dataclass
class AdapterSlot:
    """Training state of one run."""

    name: str
    model: str
    shape: AdapterShape | None
    """Shape of the adapter, or None if all weights are trained."""
    parameters: dict[str, torch.nn.Parameter]
    """Trained parameters in a fixed order, by peft's names, or by the model's names if all weights are trained."""
    optimizer: torch.optim.Optimizer
    rng: dict[str, torch.Tensor]
    """States of torch's random generators by device type."""
    updates: int = 0
    """Number of optimizer steps made, including those before a warm start."""
    is_new: bool = True
    """True if no checkpoint was loaded into the slot, so that training starts from the base model's weights."""
    kl_beta: float | None = None
    """Current weight of the KL penalty, or None until its controller has set one."""
    reference: Reference = Reference.pending
    copied: dict[str, torch.Tensor] = field(default_factory=dict)
    """Frozen copy of the adapter's parameters, if the reference is a copy."""
    gradients_checked: bool = False
    """True once a step has shown which layers get a gradient."""
    factors: Mapping[str, Factors] = field(default_factory=dict)
    """Factors of the adapter, by the full names of its layers."""
    tensor_names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Names in `parameters` of each layer's factors A and B."""
    formats: Mapping[str, ExpertFormat] = field(default_factory=dict)
    """File formats of the factors of routed experts, by the full name of the experts' parameter."""
    config: LoraConfig | None = None
    """Configuration in the adapter's files, or None if all weights are trained."""
    warnings: list[Problem] = field(default_factory=list)
    """Warnings about the adapter for its users."""

    def files(self, dtype: torch.dtype = torch.float32) -> dict[str, bytes]:
        """Return the adapter as peft files with tensors in `dtype`. float32 is lossless."""
        assert self.config is not None
        # The many small tensors of the experts are cut from copies on the CPU.
        tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in self.parameters.items()}
        for layer, form in self.formats.items():
            a, b = self.tensor_names[layer]
            tensors |= form.split(tensors.pop(a), tensors.pop(b))
        return adapter_files(tensors, self.config, self.model)

    def parameters_of(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Convert the tensors of an adapter's files to values of the slot's parameters, by name. Tensors that do not
        fit the experts' format keep the names that they have in the file.
        """
        values = dict(tensors)
        for layer, form in self.formats.items():
            a, b = self.tensor_names[layer]
            with suppress(KeyError, RuntimeError):
                values[a], values[b] = form.join(tensors, len(self.factors[layer].a))
                for name in form.split(values[a], values[b]):
                    del values[name]
        return values

    def reference_factors(self) -> dict[str, Factors]:
        """Return the KL penalty's reference by layer, without dropout. Empty unless the reference is a copy."""
        if self.reference is not Reference.copy:
            return {}
        return {
            layer: Factors(self.copied[a], self.copied[b], self.factors[layer].scale, dropout=0.0)
            for layer, (a, b) in self.tensor_names.items()
        }


@dataclass
class BaseModel:
    """Model with its slots. Not thread-safe: all calls must be made on the compute thread."""

    model: Any
    device: torch.device
    capacity: int
    single_row: bool
    """True if attention supports variable lengths in one long row (varlen, flash attention) instead of a mask per row.
    """
    loader: Loader
    slots: dict[str, AdapterSlot] = field(default_factory=dict)
    shares_rows: bool = True
    """True if several samples may share a row of a micro-batch (see `row_layout`)."""
    warnings: list[Problem] = field(default_factory=list)
    """Warnings about the model for the users of every session."""
    layers: dict[str, Adapted] = field(default_factory=dict)
    """Layers and parameters of experts for which a slot has had an adapter, by full name."""
    start: Any = None
    """Frozen model for the KL penalty of a run that trains all weights: the base model, until `fix_reference` copies
    the trained weights into it. None if there is no penalty.
    """

    @property
    def world(self) -> ProcessGroup:
        """Processes that share this model."""
        return self.loader.world

    @property
    def guard(self) -> FailureGuard:
        """Guard that records failures in the current pass."""
        return self.loader.guard

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding. Token ids must be smaller."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def hidden_states(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states [rows, width, H] with the active adapter."""
        states: torch.Tensor = getattr(self.model, DECODE)(input_ids, position_ids)
        return states

    @property
    def head(self) -> Head:
        """Function from hidden states to logits, as in the model's forward pass."""
        config = self.model.config.get_text_config()
        project = self.model.get_output_embeddings()
        cap = getattr(config, "final_logit_softcapping", None)
        divide = getattr(config, "logits_scaling", None)
        multiply = getattr(self.model, "logit_scale", None) or getattr(config, "lm_head_multiplier", None)

        def head(states: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = project(states)
            if multiply:
                logits = logits * multiply
            if divide:
                logits = logits / divide
            return torch.tanh(logits / cap) * cap if cap else logits

        return head

    def open(self, name: str, model: str, shape: AdapterShape, seed: int) -> AdapterSlot:
        """Claim a slot with a new adapter, initialized from the seed. Raises ProblemError (NoFreeSlot, AdapterInvalid,
        TrainerOutOfMemory), after which no slot is claimed.
        """
        self._check_unshared()
        if len(self.slots) >= self.capacity:
            raise ProblemError.of(
                LATER,
                Reason.NO_FREE_SLOT,
                f"All {self.capacity} adapter slots are in use, by {sorted(self.slots)}. Wait for one of these runs "
                "to end.",
            )
        check_served(self.model.config.model_type)
        stored = self.loader.names
        joined = not JOINED_ARCHITECTURES.isdisjoint(ModelClass.of(self.loader.settings.model_dir).architectures)
        layers = linear_layers(self.model, stored, joined=joined)
        targets = resolve(shape.target_modules, layers)
        formats = {}
        for target in targets:
            block, _, parameter = target.rpartition(".")
            routed = target in layers.routed
            if routed:
                formats[target] = ExpertFormat.of(parameter, stored.experts[block], joined=joined)
            if target not in self.layers:
                self.layers |= (
                    add_expert_layer(self.model, block) if routed else {target: add_adapter_layer(self.model, target)}
                )
        every = (*layers.served, *layers.named, *layers.refused)
        chosen = [stored.for_peft(n) for n in targets if n not in formats]
        modules, parameters = file_targets(chosen, [stored.for_peft(n) for n in every], layers.experts)
        modules += sorted({module for form in formats.values() for module in form.peft_modules})
        parameters += sorted({parameter for form in formats.values() for parameter in form.peft_parameters})
        needed = (
            f"An adapter of rank {shape.rank} for {len(targets)} layers does not fit into the trainer's memory. Lower "
            f"lora.rank, or name fewer lora.targetModules. {self.loader.memory_advice}"
        )
        with refuses_without_memory(needed):
            slot = self._new_slot(name, model, shape, targets, formats, seed)
        slot.config = shape.peft_config(model, modules, parameters)
        problem = warning(targets, layers)
        if problem is not None:
            log.warning("%s: %s", name, problem.message)
            slot.warnings.append(problem)
        self.slots[name] = slot
        return slot

    def open_weights(self, name: str, model: str, seed: int, compared: bool) -> AdapterSlot:
        """Claim the entire trainer for a run that trains all weights. If `compared` is True, loads a second model as
        the reference of the run's KL penalty.

        Weights are stored in float32 and cast to the trainer's dtype for computation. Raises ProblemError.
        """
        self._check_unshared()
        if self.slots:
            raise ProblemError.of(
                LATER,
                Reason.NO_FREE_SLOT,
                f"Training all weights needs the whole trainer, which is in use by {sorted(self.slots)}. Wait for "
                "these runs to end.",
            )
        self._reload(trainable=True)
        if compared:
            self.start = self.loader.load()
        parameters = dict(self.model.named_parameters())
        slot = AdapterSlot(name, model, None, parameters, self._optimizer(parameters), self._rng(seed))
        self.slots[name] = slot
        return slot

    def close(self, name: str) -> None:
        """Release the slot. An unknown name has no effect."""
        slot = self.slots.pop(name, None)
        if slot is None:
            return
        if slot.shape is None:
            slot.parameters.clear()
            slot.optimizer.state.clear()
            slot.optimizer.param_groups.clear()
            self._reload(trainable=False)
        # Layers may still refer to the slot's adapter.
        activate(self.layers, {})
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def activate(self, slot: AdapterSlot) -> None:
        """Activate the slot's adapter for forward and backward passes."""
        reshard(self.model)
        if slot.shape is not None:
            activate(self.layers, slot.factors)

    def fix_reference(self, slot: AdapterSlot) -> None:
        """Make the slot's weights the reference of its KL penalty, unless the penalty already has a reference. All
        processes must call it.
        """
        if slot.reference is not Reference.pending:
            return
        if slot.updates == 0 and slot.is_new:
            # A new adapter changes nothing, so no copy is needed.
            slot.reference = Reference.base
            return
        if slot.shape is not None:
            slot.copied = {name: parameter.detach().clone() for name, parameter in slot.parameters.items()}
        else:
            frozen = self.frozen_parameters()
            for name, parameter in slot.parameters.items():
                copy_into(frozen[name], full_tensor(parameter.detach()))
        slot.reference = Reference.copy

    def frozen_parameters(self) -> dict[str, torch.Tensor]:
        """Return the reference parameters of a run that trains all weights, or an empty dict if there is no penalty."""
        if self.start is None:
            return {}
        reshard(self.start)
        return dict(self.start.named_parameters())

    @contextmanager
    def reference(self, slot: AdapterSlot) -> Iterator[None]:
        """Context in which forward passes use the slot's reference, without gradients or dropout."""
        with torch.no_grad():
            if slot.shape is None:
                trained, self.model = self.model, self.start
                try:
                    yield
                finally:
                    self.model = trained
            else:
                activate(self.layers, slot.reference_factors())
                try:
                    yield
                finally:
                    activate(self.layers, slot.factors)

    def _check_unshared(self) -> None:
        whole = [name for name, slot in self.slots.items() if slot.shape is None]
        if whole:
            raise ProblemError.of(
                LATER,
                Reason.NO_FREE_SLOT,
                f"{whole[0]} trains all weights and uses the whole trainer. Wait for it to end.",
            )

    def _reload(self, trainable: bool) -> None:
        # Free the old model first, because memory is sized for one model.
        self.model = self.start = None
        self.layers.clear()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.loader.guard = FailureGuard()
        self.model = self.loader.load(trainable)

    def _new_slot(
        self,
        name: str,
        model: str,
        shape: AdapterShape,
        targets: Iterable[str],
        formats: Mapping[str, ExpertFormat],
        seed: int,
    ) -> AdapterSlot:
        names: dict[str, tuple[str, str]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for target in targets:
            stored = self.loader.names.of_layer(target)
            a, b = names[target] = tensor_name(stored, "A"), tensor_name(stored, "B")
            shapes[a], shapes[b] = self.layers[target].shapes(shape.rank)
        tensors = _initial_tensors(shapes, seed, self.device)
        scale = shape.alpha / shape.rank
        factors = {target: Factors(tensors[a], tensors[b], scale, shape.dropout) for target, (a, b) in names.items()}
        optimizer, rng = self._optimizer(tensors), self._rng(seed)
        return AdapterSlot(
            name, model, shape, tensors, optimizer, rng, tensor_names=names, factors=factors, formats=formats
        )

    def _optimizer(self, parameters: dict[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            list(parameters.values()), lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=0.0, foreach=True
        )

    def _rng(self, seed: int) -> dict[str, torch.Tensor]:
        # Processes train on different samples and need different seeds. The first keeps the seed of a single process.
        seed = (seed + self.world.rank * RANK_STRIDE) % 2**63
        states = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.Generator(self.device).manual_seed(seed).get_state()
        return states


def _initial_tensors(
    shapes: Mapping[str, tuple[int, ...]], seed: int, device: torch.device
) -> dict[str, torch.nn.Parameter]:
    # Initialize as peft does (A uniform as nn.Linear, B zero), but from the run's seed and in float32.
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in sorted(shapes.items()):
        values = torch.zeros(shape, dtype=torch.float32)
        if ".lora_A." in name:
            # The rows of all experts have the same number of inputs.
            torch.nn.init.kaiming_uniform_(values.view(-1, shape[-1]), a=math.sqrt(5), generator=generator)
        tensors[name] = torch.nn.Parameter(values.to(device))
    return tensors


def load_base(settings: TrainerSettings, world: ProcessGroup | None = None) -> BaseModel:
    """Load the frozen base model given by the settings. All processes must call it.

    If one process fails, all processes raise ProblemError, so that they all try the same implementation of attention.
    """
    loader = Loader(settings, world or ProcessGroup())
    for attention in loader.attentions[:-1]:
        loader.attention = attention
        try:
            return _load_checked(loader)
        except ProblemError as error:
            if error.problem.reason not in TRY_OTHER_ATTENTION:
                raise
            log.info("Trying the next implementation of attention: %s", error)
        # Free the failed model, to which its own methods refer, because memory is sized for one model.
        gc.collect()
    loader.attention = loader.attentions[-1]
    return _load_checked(loader)


def _load_checked(loader: Loader) -> BaseModel:
    loader.guard = FailureGuard()
    settings = loader.settings
    base = BaseModel(
        loader.load(),
        loader.device,
        settings.slots,
        loader.attention.startswith("flash"),
        loader,
    )
    with loader.world.raise_together(), loader.explain_failures():
        _check_head(base)
        measured = row_layout.measure(base.hidden_states, base.head, base.vocab_size, base.device)
        base.guard.settle()
    with loader.explain_failures():
        _choose_rows(base, measured)
    reshard(base.model)
    log.info("Base model %s on %s, %s, %s attention", settings.model_dir, base.device, loader.dtype, loader.attention)
    return base


def _check_head(base: BaseModel) -> None:
    # The fast path (decoder, then head on selected positions) must equal the architecture's forward pass.
    ids = torch.arange(CHECK_TOKENS, device=base.device)[None] % base.vocab_size
    with torch.no_grad():
        ours = base.head(base.hidden_states(ids, torch.arange(CHECK_TOKENS, device=base.device)[None])).float()
        theirs = base.model(input_ids=ids, use_cache=False).logits.float()
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2):
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.MODEL_UNSUPPORTED,
            f"{type(base.model).__name__} computes its logits in a way that the trainer does not support "
            f"(difference {(ours - theirs).abs().max():.3g}). Use another model.",
        )


def _choose_rows(base: BaseModel, measured: row_layout.RowDifference) -> None:
    mixing = row_layout.mixing_layers(getattr(base.model.config.get_text_config(), "layer_types", None))
    # All processes must pack alike, so the first one's measurement counts.
    differences = torch.tensor([measured.shared, measured.separate], dtype=torch.float64)
    measured = row_layout.RowDifference(*base.world.broadcast_tensor(differences, (2,), torch.float64).tolist())
    base.shares_rows, warning = row_layout.choose_packing(measured, mixing, base.loader.dtype)
    if base.loader.tries_varlen and not base.single_row:
        passes = attention_choice.Passes(base.model, base.hidden_states, base.head, base.guard)
        if attention_choice.choose(passes, base.loader, mixing):
            base.single_row, base.shares_rows, warning = True, not mixing, None
    if warning is not None:
        log.warning("%s", warning.message)
        base.warnings.append(warning)
    elif not base.shares_rows:
        log.info(
            "Using one sample per row, because layers of type %s may carry state from one sample to the next",
            ", ".join(mixing),
        )
