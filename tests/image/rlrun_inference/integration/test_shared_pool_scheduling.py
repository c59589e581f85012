"""vLLM's own scheduler with more adapters than it batches, with and without the admission of a shared pool."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rlrun_engine_access.admission import Admission, Ticket
from vllm.config import CacheConfig, DeviceConfig, LoRAConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tests.image.rlrun_inference.test_engine_fork import MODEL

MAX_LORAS = 2
SEQUENCES = 64
STEPS = 3_000
LONGEST = 30
"""Tokens, and therefore steps, of the longest response."""
FLOOD = 8
"""Requests that the adapters a and b always have."""
BLOCKS = 4_000


@pytest.fixture
def scheduler(tmp_path: Path) -> Scheduler:
    """Scheduler of an engine without weights and workers."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    cache = CacheConfig(block_size=16, enable_prefix_caching=False)
    cache.num_gpu_blocks = BLOCKS
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(tmp_path), skip_tokenizer_init=True, dtype="float32", max_model_len=64, enforce_eager=True
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=SEQUENCES, max_num_batched_tokens=4096, max_model_len=64, is_encoder_decoder=False
        ),
        cache_config=cache,
        lora_config=LoRAConfig(max_loras=MAX_LORAS, max_cpu_loras=8, max_lora_rank=16),
        device_config=DeviceConfig("cpu"),
    )
    attention = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32)
    blocks = KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(config),
        block_size=16,
        log_stats=False,
    )


class Engine:
    """Scheduler, and the model runner's answers to it: one token per request and step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._rng = random.Random(0)
        self._owners: dict[str, Ticket] = {}

    def add(self, ticket: Ticket) -> None:
        name = f"{ticket.uid}-{len(self._owners)}"
        self._owners[name] = ticket
        params = SamplingParams(max_tokens=self._rng.randint(5, LONGEST), ignore_eos=True)
        adapter = LoRARequest(ticket.uid, 1 + "abc".index(ticket.uid), f"/adapters/{ticket.uid}")
        request = Request(
            request_id=name,
            prompt_token_ids=[1] * 16,
            sampling_params=params,
            pooling_params=None,
            lora_request=adapter,
        )
        self._scheduler.add_request(request)

    def step(self) -> tuple[set[str], list[Ticket]]:
        """Return the runs that were scheduled, and the requests that ended."""
        scheduled = self._scheduler.schedule()
        names = list(scheduled.num_scheduled_tokens)
        before = set(self._scheduler.requests)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[7] for _ in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self._scheduler.update_from_output(scheduled, output)
        ended = before - set(self._scheduler.requests)
        return {self._owners[name].uid for name in names}, [self._owners[name] for name in sorted(ended)]


def waits_of_c(engine: Engine, ask: Callable[[Ticket], None], end: Callable[[Ticket], None]) -> list[int]:
    """Return the steps that each request of c waited. The last value is of one that was not scheduled.

    The runs a and b always have FLOOD requests, c one at a time.
    """
    live, waits, asked = Counter[str](), [], 0
    for step in range(STEPS):
        for uid, wanted in {"a": FLOOD, "b": FLOOD, "c": int(step >= 5)}.items():
            while live[uid] < wanted:
                live[uid] += 1
                asked = step if uid == "c" else asked
                ask(Ticket(uid, uid))
        scheduled, ended = engine.step()
        assert len(scheduled) <= MAX_LORAS
        if "c" in scheduled and asked >= 0:
            waits.append(step - asked)
            asked = -1
        for ticket in ended:
            live[ticket.uid] -= 1
            end(ticket)
    return [*waits, *([STEPS - asked] if asked >= 0 else [])]


def test_vllm_starves_an_adapter_that_does_not_fit_into_the_batch(scheduler: Scheduler) -> None:
    """If this fails, vLLM has become fair, and the admission by adapter may go."""
    engine = Engine(scheduler)
    (wait,) = waits_of_c(engine, engine.add, lambda ticket: None)
    assert wait > STEPS - 10


def test_admission_gives_each_adapter_its_turn(scheduler: Scheduler) -> None:
    engine, admission = Engine(scheduler), Admission(MAX_LORAS, SEQUENCES)
    admission.set_limits(dict.fromkeys("abc", FLOOD))

    def start(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            engine.add(ticket)

    def ask(ticket: Ticket) -> None:
        admission.enter(ticket)
        start(admission.offer(ticket))

    waits = waits_of_c(engine, ask, lambda ticket: start(admission.end(ticket)))
    assert len(waits) > 40
    # A response takes a step per token; a request that starts while the engine computes is scheduled a step later.
    assert max(waits) <= LONGEST + 2
