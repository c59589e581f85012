"""Baseline training loop, as a user would write it: peft, transformers, padded batches, a hand-written policy gradient.

It makes the same update as the trainer: importance-weighted REINFORCE, averaged over all trainable tokens of the batch,
and one AdamW step with the gradient clipped to norm 1.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from rlrun.protocol.train_batch import Sample
from transformers import AutoModelForCausalLM

from bench.padded_batches import in_order, padding, sorted_by_length


class PlainLoop:
    """Model with one adapter and its optimizer."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        alpha: float,
        targets: Sequence[str],
        learning_rate: float,
        device: str,
        dtype: str,
    ) -> None:
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
        config = LoraConfig(
            r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=list(targets), task_type="CAUSAL_LM"
        )
        self.device = torch.device(device)
        self.model: Any = get_peft_model(base, config).to(self.device).train()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, samples: Sequence[Sample], budget: int, by_length: bool = False) -> dict[str, float]:
        """Make one update, with at most `budget` tokens, including padding, per forward pass.

        Returns seconds, loss and the fraction of padding. `by_length` sorts the samples by length before batching.
        """
        started = time.perf_counter()
        lengths = [len(s.token_ids) for s in samples]
        batches = sorted_by_length(lengths, budget) if by_length else in_order(lengths, budget)
        trainable = sum(sum(s.loss_mask) for s in samples)
        loss = sum(self._backward([samples[i] for i in batch], trainable) for batch in batches)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"seconds": time.perf_counter() - started, "loss": loss, "padding": padding(lengths, batches)}

    def _backward(self, samples: Sequence[Sample], trainable: int) -> float:
        width = max(len(s.token_ids) for s in samples)

        def pad(rows: list[list[Any]], kind: torch.dtype) -> torch.Tensor:
            return torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=kind, device=self.device)

        ids = pad([list(s.token_ids) for s in samples], torch.long)
        attention = pad([[1] * len(s.token_ids) for s in samples], torch.long)
        mask = pad([[float(m) for m in s.loss_mask] for s in samples], torch.float32)[:, 1:]
        sampled = pad([list(s.logprobs) for s in samples], torch.float32)[:, 1:]
        advantages = torch.tensor([s.advantage for s in samples], device=self.device)[:, None]
        logits = self.model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
        logprobs = torch.log_softmax(logits.float(), dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        ratio = (logprobs.detach() - sampled).clamp(-20, 20).exp()
        loss = -(ratio * advantages * logprobs * mask).sum() / trainable
        loss.backward()
        return float(loss.detach())
