"""On-policy distillation: a teacher scores the policy's own rollouts.

One request per training sequence asks stock vLLM for the log probability of every token of the sequence
(`prompt_logprobs`). vLLM computes these from the logits alone: at temperature 1 and without truncation, independent of
the request's sampling parameters. The trainer compares them with its own log probabilities of the current policy in
the same distribution (`rlrun_trainer.optimization.distillation`). The log probabilities of the run's engine cannot be
used for this, because they belong to an older policy and to the run's sampling distribution.
"""

import asyncio
import json
import logging
import math
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from rlrun.api.base.address_rules import refusal_message
from rlrun.api.base.received import ENGINE_LIMITS, read_fast
from rlrun.api.run_sections.training import Teacher as TeacherSpec
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import LARGEST_LOGPROB
from rlrun.service.backoff import Backoff
from rlrun.service.errors import FatalError, RequestRejected, ServiceUnavailable
from rlrun.service.outgoing_client import AddressRefused, OutgoingClient

from rlrun_orchestrator.data.groups import Group, Rollout
from rlrun_orchestrator.data.trajectories import TokenSequence

log = logging.getLogger(__name__)

LOWEST = -100.0
"""Log probability of a token that the teacher considers impossible, for which vLLM reports -9999 or minus infinity."""
PARALLEL = 32
"""Number of concurrent requests to the teacher. Its engine batches them."""
TIMEOUT_SECONDS = 300.0
"""Timeout of one request in seconds."""
COMPONENT = "teacher"
REFUSED_SEQUENCE = (400, 413, 422)
"""Statuses with which a teacher may refuse one sequence, for example because it exceeds the teacher's context. Other
statuses concern the teacher's model, its URL or access.
"""
URL_FIELD = "spec.algorithm.teacher.url"


class SequenceRefused(Exception):
    """Error for a sequence that the teacher refuses or scores with NaN, although it scores other sequences."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class DistillationTeacher:
    """Client for an OpenAI endpoint with vLLM's `prompt_logprobs`."""

    def __init__(
        self,
        client: OutgoingClient,
        spec: TeacherSpec,
        report: Callable[[str, Problem | None], None],
        *,
        deadline: float,
        first_pause: float = 0.5,
    ) -> None:
        """`report(component, problem)` receives the reason for each wait. `deadline` is the time in seconds after which
        an unreachable teacher ends the attempt.
        """
        self._client = client
        self._url = f"{spec.url.rstrip('/')}/completions"
        self._model = spec.model
        self._report = report
        self._deadline = deadline
        self._first_pause = first_pause
        self._semaphore = asyncio.Semaphore(PARALLEL)

    async def score(self, group: Group) -> None:
        """Set the teacher's log probabilities for every valid rollout of the group. A rollout fails if the teacher
        refuses one of its sequences or returns NaN for it. Raises FatalError.
        """
        await asyncio.gather(*(self._score(rollout) for rollout in group.valid_rollouts))

    async def _score(self, rollout: Rollout) -> None:
        try:
            rollout.teacher_logprobs = list(
                await asyncio.gather(*(self._logprobs(sequence) for sequence in rollout.trajectory.sequences))
            )
        except SequenceRefused as error:
            rollout.error = error.problem

    async def _logprobs(self, sequence: TokenSequence) -> "array[float]":
        async with self._semaphore:
            try:
                answer = await self._request_with_retries(sequence.token_ids)
            except RequestRejected as error:
                if error.status not in REFUSED_SEQUENCE:
                    raise FatalError(_rejection_problem(error), ExitCode.CONFIGURATION) from error
                await self._check_configuration(sequence.token_ids)
                message = (
                    f"the teacher refused a sequence of {len(sequence.token_ids)} tokens: {error.problem.message}; "
                    "the teacher's context must be at least one token longer than seqLen of the RLModel"
                )
                raise SequenceRefused(_problem(Reason.TEACHER_REFUSED, message)) from error
        # Parse in a thread, because the response has tens of bytes for each token.
        return await asyncio.to_thread(self._sampled_logprobs, answer, sequence)

    def _sampled_logprobs(self, answer: bytes, sequence: TokenSequence) -> "array[float]":
        return sampled_logprobs(sequence, self._parse(answer, sequence.token_ids))

    async def _check_configuration(self, token_ids: Sequence[int]) -> None:
        """Raise FatalError if the teacher refuses even the first two tokens, because it would refuse every sequence."""
        try:
            await self._request_with_retries(token_ids[:2])
        except RequestRejected as error:
            raise FatalError(_rejection_problem(error), ExitCode.CONFIGURATION) from error

    async def _request_with_retries(self, token_ids: Sequence[int]) -> bytes:
        """Return the teacher's response to a prompt. Raises RequestRejected, FatalError."""
        fields = {
            "model": self._model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0
        }  # fmt: skip
        body = json.dumps(fields, separators=(",", ":")).encode()
        first_failure: float | None = None
        backoff = Backoff(self._first_pause, 20 * self._first_pause)
        while True:
            try:
                answer = await self._client.post(self._url, body, timeout=TIMEOUT_SECONDS)
                self._report(COMPONENT, None)
                return answer
            except AddressRefused as error:
                message = refusal_message(URL_FIELD, error.problem.message)
                raise FatalError(_problem(Reason.ADDRESS_NOT_ALLOWED, message), ExitCode.CONFIGURATION) from error
            except RequestRejected as error:
                if (error.status or 0) < 500:
                    raise
                detail = error.problem.message
            except ServiceUnavailable as error:
                detail = error.problem.message
            problem = _problem(
                Reason.TEACHER_UNREACHABLE,
                f"the teacher at algorithm.teacher.url is unreachable: {detail}; check its URL and its server",
            )
            self._report(COMPONENT, problem)
            now = time.monotonic()
            first_failure = now if first_failure is None else first_failure
            if now - first_failure >= self._deadline:
                raise FatalError(problem, ExitCode.RESTART)
            backoff.record_failure(now)
            await asyncio.sleep(backoff.pause)

    def _parse(self, answer: bytes, token_ids: Sequence[int]) -> list[float]:
        """Return the teacher's log probability of each token, and 0.0 for the first token, which has no context.

        Raises FatalError, and SequenceRefused if a log probability is NaN.
        """
        try:
            document = read_fast(answer, "the answer", ENGINE_LIMITS, allows_nan=True)
            prompt_logprobs: list[dict[str, Any] | None] = document["choices"][0]["prompt_logprobs"]
            # The engine names the token of each position, so that a different tokenizer is detected here.
            pairs = zip(token_ids, prompt_logprobs, strict=True)
            logprobs = [float(entry[str(token)]["logprob"]) if entry else 0.0 for token, entry in pairs]
            if max(logprobs, default=0.0) > LARGEST_LOGPROB:
                raise ValueError("not the logarithm of a probability")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            # Omit the text of the error, which may quote the response.
            message = (
                f"the teacher's response has no prompt_logprobs for these {len(token_ids)} tokens "
                f"({type(error).__name__}); algorithm.teacher must be a vLLM server whose model has the same "
                "tokenizer as the trained model"
            )
            raise FatalError(_problem(Reason.TEACHER_ANSWER_UNUSABLE, message), ExitCode.CONFIGURATION) from error
        if any(map(math.isnan, logprobs)):
            message = (
                f"the teacher returned a log probability of NaN for a sequence of {len(token_ids)} tokens; check the "
                "log of its server"
            )
            raise SequenceRefused(_problem(Reason.TEACHER_ANSWER_UNUSABLE, message))
        return logprobs


def sampled_logprobs(sequence: TokenSequence, teacher: Sequence[float]) -> "array[float]":
    """Return the teacher's log probabilities for sampled tokens, at least LOWEST, and 0.0 elsewhere.

    `teacher` has one entry per token, none of which is NaN.
    """
    masked = zip(teacher, sequence.loss_mask, strict=True)
    return array("f", [max(LOWEST, logprob) if mask else 0.0 for logprob, mask in masked])


def _rejection_problem(error: RequestRejected) -> Problem:
    message = (
        f"the teacher rejected a request: {error.problem.message}; check algorithm.teacher, its seqLen and the log of "
        "its server"
    )
    return _problem(Reason.TEACHER_REFUSED, message)


def _problem(reason: str, message: str) -> Problem:
    return Problem(reason=reason, message=message[:1000])
