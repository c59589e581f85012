"""One base model, frozen, and K adapter slots on it; or one run that trains the model itself.

A slot is everything that belongs to one run's learning: LoRA parameters, AdamW's moments, a random number generator's
state and the count of updates. Exactly one slot is active during a step, and a step touches nothing outside its slot,
so a run learns the same, to the bit, whoever shares the model with it. Who trains all weights shares it with nobody.
"""

import gc
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from rlrun.service.errors import ProblemError

from rlrun_trainer.adapters import ALL_LINEAR, AdapterShape, adapter_files, peft_name
from rlrun_trainer.distributed import World
from rlrun_trainer.distribution import Head
from rlrun_trainer.guard import Guard
from rlrun_trainer.loading import DECODE, Loader, at_rest
from rlrun_trainer.problems import LATER, UNPROCESSABLE
from rlrun_trainer.settings import Settings

log = logging.getLogger(__name__)

BETAS = (0.9, 0.95)
EPSILON = 1e-8
CHECK_TOKENS = 8
RANK_STRIDE = 1_000_003
"""Between the seeds of processes that train together."""


@dataclass
class Slot:
    """One run's share of the trainer."""

    name: str
    model: str
    shape: AdapterShape | None
    """None where all weights of the model are trained."""
    parameters: dict[str, torch.nn.Parameter]
    """By peft's name, or by the model's own, in a fixed order."""
    optimizer: torch.optim.Optimizer
    rng: dict[str, torch.Tensor]
    """States of torch's generators, by device type."""
    updates: int = 0
    """Optimizer steps behind these weights, earlier runs of a warm start included."""
    kl_beta: float | None = None
    """Weight of the KL penalty that its controller left behind, if there was one."""

    def files(self) -> dict[str, bytes]:
        """The adapter as stock peft files."""
        assert self.shape is not None
        return adapter_files(self.parameters, self.shape.peft_config(self.model), self.model)


@dataclass
class BaseModel:
    """The model with its slots. Not thread-safe: everything happens on the one compute thread."""

    model: Any
    device: torch.device
    capacity: int
    weight_decay: float
    single_row: bool
    """Whether attention takes variable lengths in one long row (flash) instead of a mask per row."""
    loader: Loader
    slots: dict[str, Slot] = field(default_factory=dict)
    start: Any = None
    """A frozen copy of what a run that trains all weights starts from, if it has to be compared with it."""

    @property
    def world(self) -> World:
        """The processes that hold this model together."""
        return self.loader.world

    @property
    def guard(self) -> Guard:
        """What failed in the pass under way."""
        return self.loader.guard

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: token ids below it can be looked up."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def hidden(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Last hidden states [rows, width, H] under the active adapter."""
        states: torch.Tensor = getattr(self.model, DECODE)(input_ids, position_ids)
        return states

    @property
    def head(self) -> Head:
        """Hidden states to logits, as the model's own forward does it."""
        config = self.model.config.get_text_config()
        project = self.model.get_output_embeddings()
        cap = getattr(config, "final_logit_softcapping", None)
        divide = getattr(config, "logits_scaling", None)
        multiply = getattr(self.model, "logit_scale", None)

        def head(states: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = project(states)
            if multiply:
                logits = logits * multiply
            if divide:
                logits = logits / divide
            return torch.tanh(logits / cap) * cap if cap else logits

        return head

    def open(self, name: str, model: str, shape: AdapterShape, seed: int) -> Slot:
        """Claims a slot with a fresh adapter, the same for the same seed. Raises ProblemError."""
        self._check_unshared()
        if len(self.slots) >= self.capacity:
            raise ProblemError.of(
                LATER, "NoFreeSlot", f"all {self.capacity} adapter slots are taken by {sorted(self.slots)}"
            )
        taken = {slot.name for slot in self.slots.values()}
        adapter = next(name for name in (f"slot{i}" for i in range(self.capacity)) if name not in taken)
        self._check_targets(shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model.add_adapter(shape.peft_config(model), adapter)
        marker = f".{adapter}."
        named = {peft_name(n, adapter): p for n, p in self.model.named_parameters() if marker in n and ".lora_" in n}
        parameters = dict(sorted(named.items()))
        _initialise(parameters, seed)
        slot = Slot(adapter, model, shape, parameters, self._optimizer(parameters), self._rng(seed))
        self.slots[name] = slot
        return slot

    def open_weights(self, name: str, model: str, seed: int, compared: bool) -> Slot:
        """Claims the whole trainer for a run that trains all weights; `compared` keeps what it starts from.

        The weights are kept in float32 and computed with in the trainer's dtype. Raises ProblemError.
        """
        self._check_unshared()
        if self.slots:
            raise ProblemError.of(
                LATER,
                "NoFreeSlot",
                f"training all weights needs the whole trainer, which {sorted(self.slots)} use: wait for their end",
            )
        self._reload(trainable=True)
        if compared:
            self.start = self.loader.load()
        parameters = dict(self.model.named_parameters())
        slot = Slot("weights", model, None, parameters, self._optimizer(parameters), self._rng(seed))
        self.slots[name] = slot
        return slot

    def close(self, name: str) -> None:
        """Gives the slot back; nothing happens when there is none of that name."""
        slot = self.slots.pop(name, None)
        if slot is None:
            return
        if slot.shape is None:
            slot.parameters.clear()
            slot.optimizer.state.clear()
            slot.optimizer.param_groups.clear()
            self._reload(trainable=False)
        else:
            self._forget(slot.name)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def activate(self, slot: Slot) -> None:
        """Makes the slot's adapter the one that forward passes use and gradients reach."""
        at_rest(self.model)
        if slot.shape is not None:
            self.model.set_adapter(slot.name)

    @contextmanager
    def reference(self, slot: Slot) -> Iterator[None]:
        """Inside, forward passes are those of the model that the slot's training starts from; no gradients."""
        if slot.shape is None:
            trained, self.model = self.model, self.start
            try:
                with torch.no_grad():
                    yield
            finally:
                self.model = trained
            return
        self.model.disable_adapters()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.enable_adapters()
            self.model.set_adapter(slot.name)

    def _check_unshared(self) -> None:
        whole = [name for name, slot in self.slots.items() if slot.shape is None]
        if whole:
            raise ProblemError.of(
                LATER, "NoFreeSlot", f"{whole[0]} trains all weights and so has the whole trainer: wait for its end"
            )

    def _reload(self, trainable: bool) -> None:
        # Never two of them at a time: the old one goes first.
        self.model = self.start = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.loader.guard = Guard()
        self.model = self.loader.load(trainable)

    def _forget(self, adapter: str) -> None:
        with warnings.catch_warnings():
            # peft makes another adapter the active one and says so; every step chooses its own anyway.
            warnings.simplefilter("ignore")
            self.model.delete_adapter(adapter)

    def _check_targets(self, shape: AdapterShape) -> None:
        # peft takes a name that fits nothing in silence, as long as another one fits.
        linear = {name for name, module in self.model.named_modules() if isinstance(module, torch.nn.Linear)}
        ends = {name.removesuffix(".base_layer").rsplit(".", 1)[-1] for name in linear if ".lora_" not in name}
        unknown = [target for target in shape.target_modules if target != ALL_LINEAR and target not in ends]
        if unknown:
            raise ProblemError.of(
                UNPROCESSABLE,
                "AdapterInvalid",
                f"targetModules {unknown} are no linear layers of this model; it has {sorted(ends)}",
            )

    def _optimizer(self, parameters: dict[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            list(parameters.values()), lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=self.weight_decay, foreach=True
        )

    def _rng(self, seed: int) -> dict[str, torch.Tensor]:
        # Processes see different samples and so draw different numbers; the first one those of a trainer that is alone.
        seed = (seed + self.world.rank * RANK_STRIDE) % 2**63
        states = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.Generator(self.device).manual_seed(seed).get_state()
        return states


def _initialise(parameters: dict[str, torch.nn.Parameter], seed: int) -> None:
    # As peft does it (A uniform as nn.Linear, B zero), but from the run's own seed and in float32.
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in parameters.items():
        values = torch.zeros(parameter.shape, dtype=torch.float32)
        if "lora_A" in name or "lora_embedding_B" in name:
            torch.nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)
        parameter.data = values.to(parameter.device)
        parameter.requires_grad_(True)


def load_base(settings: Settings, world: World | None = None) -> BaseModel:
    """Loads the frozen base model as the settings say. Raises ProblemError when that cannot work."""
    loader = Loader(settings, world or World())
    base = BaseModel(
        loader.load(),
        loader.device,
        settings.slots,
        settings.weight_decay,
        loader.attention.startswith("flash"),
        loader,
    )
    _check_head(base)
    at_rest(base.model)
    log.info("base model %s on %s, %s, %s attention", settings.model_dir, base.device, loader.dtype, loader.attention)
    return base


def _check_head(base: BaseModel) -> None:
    # The fast path (decoder, then head on chosen positions) must be this architecture's own forward pass.
    ids = torch.arange(CHECK_TOKENS, device=base.device)[None] % base.vocab_size
    with torch.no_grad():
        ours = base.head(base.hidden(ids, torch.arange(CHECK_TOKENS, device=base.device)[None])).float()
        theirs = base.model(input_ids=ids, use_cache=False).logits.float()
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2):
        raise ProblemError.of(
            UNPROCESSABLE,
            "ModelUnsupported",
            f"{type(base.model).__name__} makes its logits in a way the trainer does not know "
            f"(off by {(ours - theirs).abs().max():.3g}): use another model",
        )
