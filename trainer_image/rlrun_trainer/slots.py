"""One base model, frozen, and K adapter slots on it.

A slot is everything that belongs to one run's learning: LoRA parameters, AdamW's moments, a random number generator's
state and the count of updates. Exactly one slot is active during a step, and a step touches nothing outside its slot,
so a run learns the same, to the bit, whoever shares the model with it.
"""

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import is_flash_attn_2_available
from transformers.utils.logging import disable_progress_bar

from rlrun_trainer.adapters import ALL_LINEAR, AdapterShape, adapter_files, peft_name
from rlrun_trainer.distribution import Head
from rlrun_trainer.problems import LATER, UNPROCESSABLE, Refused
from rlrun_trainer.settings import Settings

log = logging.getLogger(__name__)

BETAS = (0.9, 0.95)
EPSILON = 1e-8
CHECK_TOKENS = 8


@dataclass
class Slot:
    """One run's share of the trainer."""

    name: str
    model: str
    shape: AdapterShape
    parameters: dict[str, torch.nn.Parameter]
    """By peft's name, in a fixed order."""
    optimizer: torch.optim.Optimizer
    rng: dict[str, torch.Tensor]
    """States of torch's generators, by device type."""
    updates: int = 0
    """Optimizer steps behind these weights, earlier runs of a warm start included."""
    kl_beta: float | None = None
    """Weight of the KL penalty that its controller left behind, if there was one."""

    def files(self) -> dict[str, bytes]:
        """The adapter as stock peft files."""
        return adapter_files(self.parameters, self.shape.peft_config(self.model), self.model)


@dataclass
class BaseModel:
    """The frozen model with its slots. Not thread-safe: everything happens on the one compute thread."""

    model: Any
    device: torch.device
    capacity: int
    weight_decay: float
    single_row: bool
    """Whether attention takes variable lengths in one long row (flash) instead of a mask per row."""
    slots: dict[str, Slot] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: token ids below it can be looked up."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def hidden(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Last hidden states [rows, width, H] under the active adapter."""
        output = self.model.get_decoder()(input_ids=input_ids, position_ids=position_ids, use_cache=False)
        states: torch.Tensor = output.last_hidden_state
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
        """Claims a slot with a fresh adapter, the same for the same seed. Raises Refused."""
        if len(self.slots) >= self.capacity:
            raise Refused(LATER, "NoFreeSlot", f"all {self.capacity} adapter slots are taken by {sorted(self.slots)}")
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

    def close(self, name: str) -> None:
        """Gives the slot back; nothing happens when there is none of that name."""
        slot = self.slots.pop(name, None)
        if slot is not None:
            self._forget(slot.name)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def activate(self, slot: Slot) -> None:
        """Makes the slot's adapter the one that forward passes use and gradients reach."""
        self.model.set_adapter(slot.name)

    @contextmanager
    def reference(self, slot: Slot) -> Iterator[None]:
        """Inside, forward passes are those of the model that the slot's training starts from; no gradients."""
        self.model.disable_adapters()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.enable_adapters()
            self.activate(slot)

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
            raise Refused(
                UNPROCESSABLE,
                "AdapterInvalid",
                f"targetModules {unknown} are no linear layers of this model; it has {sorted(ends)}",
            )

    def _optimizer(self, parameters: dict[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            list(parameters.values()), lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=self.weight_decay, foreach=True
        )

    def _rng(self, seed: int) -> dict[str, torch.Tensor]:
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


def load_base(settings: Settings) -> BaseModel:
    """Loads the frozen base model as the settings say. Raises Refused when that cannot work."""
    torch.set_num_threads(settings.threads)
    disable_progress_bar()
    device = _device(settings.device)
    dtype = _dtype(settings.dtype, device)
    attention = settings.attention
    if attention == "auto":
        attention = "flash_attention_2" if device.type == "cuda" and is_flash_attn_2_available() else "sdpa"
    if not (settings.model_dir / "config.json").is_file():
        raise Refused(
            UNPROCESSABLE,
            "ModelMissing",
            f"{settings.model_dir} holds no config.json: check the RLModel's source and the fetch container's log",
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(
            settings.model_dir, dtype=dtype, attn_implementation=attention, local_files_only=True
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise Refused(UNPROCESSABLE, "ModelLoadFailed", f"{settings.model_dir} does not load: {error}") from error
    model.requires_grad_(False)
    model.to(device)
    _no_dropout(model)
    # Training mode, because only there transformers recomputes activations; without dropout it changes nothing else.
    model.train()
    if settings.gradient_checkpointing == "on" or (settings.gradient_checkpointing == "auto" and device.type == "cuda"):
        model.activation_checkpointing_enable({"use_reentrant": False})
    base = BaseModel(model, device, settings.slots, settings.weight_decay, attention.startswith("flash"))
    _check_head(base)
    log.info("base model %s on %s, %s, %s attention", settings.model_dir, device, dtype, attention)
    return base


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise Refused(UNPROCESSABLE, "DeviceMissing", "--device cuda, but torch sees no GPU: set the model's gpus to 0")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _no_dropout(model: Any) -> None:
    # The engine samples without dropout, so the base model has to be scored without it.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def _check_head(base: BaseModel) -> None:
    # The fast path (decoder, then head on chosen positions) must be this architecture's own forward pass.
    ids = torch.arange(CHECK_TOKENS, device=base.device)[None] % base.vocab_size
    with torch.no_grad():
        ours = base.head(base.hidden(ids, torch.arange(CHECK_TOKENS, device=base.device)[None])).float()
        theirs = base.model(input_ids=ids, use_cache=False).logits.float()
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2):
        raise Refused(
            UNPROCESSABLE,
            "ModelUnsupported",
            f"{type(base.model).__name__} makes its logits in a way the trainer does not know "
            f"(off by {(ours - theirs).abs().max():.3g}): use another model",
        )
