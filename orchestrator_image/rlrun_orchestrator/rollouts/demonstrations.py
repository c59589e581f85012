"""Batches for supervised steps: the environments' reference answers, tokenized so that only the answers are trained on.

    prompt               with the generation prompt     ->  p tokens, masked
    prompt + completion  without the generation prompt  ->  the same p tokens, then the trained tokens

The second rendering must start with exactly the first, so that the policy learns to answer the prompt that it gets. If
a completion has several answers (tools, turns of the environment), each is located in the same way, and the messages of
the environment between them stay masked.
"""

import asyncio
import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from rlrun.constants import ExitCode, Reason
from rlrun.protocol.environment import Demonstration, DemonstrationRequest
from rlrun.protocol.problem import Problem
from rlrun.service.errors import FatalError, RequestRejected, ServiceUnavailable
from rlrun.service.message_content import refused_content

from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample
from rlrun_orchestrator.data.trajectories import SampledSpan, TokenSequence, token_array
from rlrun_orchestrator.inference.chat_tokenizer import ChatTokenizer
from rlrun_orchestrator.inference.gateway.sampling_rules import without_strict
from rlrun_orchestrator.rollouts.environments import EnvironmentPool

log = logging.getLogger(__name__)

PARALLEL = 16
"""Number of demonstrations that are fetched and rendered concurrently."""
MAX_ROUNDS = 10
"""Number of consecutive rounds with too few samples, because demonstrations are too long, before the run fails."""
WAIT_SECONDS = 0.5
"""Pause in seconds between two checks of an unreachable environment."""


@dataclass(frozen=True)
class DemonstrationSample:
    """Demonstration as a training sequence."""

    sampled: SampledExample
    sequence: TokenSequence


class DemonstrationLoader:
    """Samples examples and fetches their reference answers."""

    def __init__(
        self,
        sampler: ExampleSampler,
        environments: EnvironmentPool,
        tokenizer: ChatTokenizer,
        *,
        batch_size: int,
        seq_len: int,
        templates: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
    ) -> None:
        """`templates` has the chat template variables of each environment that overrides the run's variables."""
        self._sampler = sampler
        self._environments = environments
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._seq_len = seq_len
        self._templates = templates
        self._semaphore = asyncio.Semaphore(PARALLEL)
        self._outstanding: list[SampledExample] = []

    async def batch(self) -> list[DemonstrationSample]:
        """Return the next `batch_size` demonstrations, in the order in which they were sampled. Raises FatalError."""
        samples: list[DemonstrationSample] = []
        for _ in range(MAX_ROUNDS):
            drawn = [self._draw() for _ in range(self._batch_size - len(samples))]
            self._outstanding += drawn
            loaded = await asyncio.gather(*(self._load_sample(sampled) for sampled in drawn))
            samples += [sample for sample in loaded if sample.sequence.token_ids]
            too_long = {sample.sampled for sample in loaded if not sample.sequence.token_ids}
            self._outstanding = [sampled for sampled in self._outstanding if sampled not in too_long]
            if len(samples) == self._batch_size:
                return samples
            skipped = sum(not sample.sequence.token_ids for sample in loaded)
            log.warning("skipping %d demonstrations whose prompts are longer than seqLen", skipped)
        message = (
            f"the prompts of most demonstrations fill the model's seqLen of {self._seq_len} tokens; shorten them or "
            "choose a model with a higher seqLen"
        )
        raise FatalError(Problem(reason=Reason.DEMONSTRATIONS_TOO_LONG, message=message), ExitCode.CONFIGURATION)

    def outstanding(self) -> list[SampledExample]:
        """Return the examples of the batch that is being collected or trained on."""
        return list(self._outstanding)

    def complete_batch(self) -> None:
        """Forget the batch, because the trainer has trained on it or the batch is lost."""
        self._outstanding = []

    def return_batch(self) -> None:
        """Sample the batch's examples again, because the trainer took its step with a different batch."""
        self._sampler.requeue(self._outstanding)
        self._outstanding = []

    def _draw(self) -> SampledExample:
        sampled = self._sampler.next_example(self._environments.environments)
        if sampled is None:
            raise FatalError(
                Problem(reason=Reason.NO_EXAMPLES, message="no environment has examples"), ExitCode.CONFIGURATION
            )
        return sampled

    async def _load_sample(self, sampled: SampledExample) -> DemonstrationSample:
        async with self._semaphore:
            template = self._templates.get(sampled.example.environment)
            sequence = await self._sequence(await self._fetch(sampled), template)
        sequence.truncate(self._seq_len)
        return DemonstrationSample(sampled, sequence if sequence.sampled else TokenSequence())

    async def _fetch(self, sampled: SampledExample) -> Demonstration:
        environment = self._environments.environments[sampled.example.environment]
        while True:
            if self._environments.failure is not None:
                raise self._environments.failure
            if environment.unreachable_since is None:
                try:
                    return await environment.client.demonstration(
                        DemonstrationRequest(example_index=sampled.example.index)
                    )
                except ServiceUnavailable as error:
                    self._environments.mark_unreachable(environment.name, error.problem)
                except RequestRejected as error:
                    message = (
                        f"environment {environment.name} has no demonstration for example {sampled.example.index}, "
                        "but supervised steps need one (algorithm.name sft or algorithm.sftSteps): "
                        f"{error.problem.message}"
                    )
                    problem = Problem(reason=Reason.DEMONSTRATIONS_MISSING, message=message[:1000])
                    raise FatalError(problem, ExitCode.CONFIGURATION) from error
            await asyncio.sleep(WAIT_SECONDS)

    async def _sequence(self, shown: Demonstration, template: Mapping[str, object] | None) -> TokenSequence:
        messages = [*shown.prompt, *shown.completion]
        first = len(shown.prompt)
        answers = [i for i in range(first, len(messages)) if messages[i].get("role") == "assistant"]
        if not answers:
            message = (
                "a demonstration's completion has no message with the role `assistant`, so there is nothing to train "
                "on; correct the environment's dataset"
            )
            raise FatalError(Problem(reason=Reason.DEMONSTRATIONS_INVALID, message=message), ExitCode.CONFIGURATION)
        other = refused_content(messages, media=False)
        if other is not None:
            message = (
                f"a demonstration has content that is not text ({other}, counted over prompt and completion), and the "
                "trainer reads only text; describe the content in text, or remove the example from the dataset"
            )
            raise FatalError(Problem(reason=Reason.DEMONSTRATIONS_INVALID, message=message), ExitCode.CONFIGURATION)
        last = answers[-1] + 1
        # Pass the tools as the gateway does, so that the prompts equal those of rollouts.
        tools = [without_strict(tool) for tool in shown.tools]
        encode = partial(self._tokenizer.encode, tools=tools, template=template)
        token_ids = await encode(messages[:last], add_generation_prompt=False)
        ids = token_array(token_ids)
        sequence = TokenSequence(ids, array("f", bytes(4 * len(ids))))
        for answer in answers:
            begin = await encode(messages[:answer], add_generation_prompt=True)
            end = token_ids
            if answer + 1 < last:
                end = await encode(messages[: answer + 1], add_generation_prompt=False)
            if token_ids[: len(begin)] != begin or token_ids[: len(end)] != end or len(end) <= len(begin):
                raise FatalError(_mismatch(), ExitCode.CONFIGURATION)
            sequence.sampled.append(SampledSpan(len(begin), len(end), 0))
        return sequence


def _mismatch() -> Problem:
    message = (
        "the model's chat template renders a demonstration's prompt differently if the answer follows, so the policy "
        "would learn from a prompt that it never gets in rollouts; use a template whose generation prompt is a "
        "prefix of the whole conversation"
    )
    return Problem(reason=Reason.CHAT_TEMPLATE_MISMATCH, message=message)


def demonstration_metrics(samples: Sequence[DemonstrationSample]) -> dict[str, float]:
    """Return the metrics of a supervised batch."""
    lengths = [len(sample.sequence.token_ids) for sample in samples]
    return {
        "batch/demonstrations": float(len(samples)),
        "seq_len/mean": sum(lengths) / len(lengths),
        "seq_len/max": float(max(lengths)),
        "seq_len/min": float(min(lengths)),
    }
