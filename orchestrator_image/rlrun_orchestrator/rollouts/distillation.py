"""On-policy distillation: a teacher scores the policy's own rollouts.

One request per training sequence asks stock vLLM for the log probability of every token of the sequence
(`prompt_logprobs`). The advantage of a sampled token is

    log p_teacher(token) - log p_policy(token)        in nats, clipped to +-LIMIT

whose mean over the policy's own tokens is minus the reverse KL divergence from the teacher (Agarwal et al. 2023,
"On-Policy Distillation of Language Models"). The limit keeps one token that the teacher considers impossible from
outweighing all others of a batch.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
from rlrun.api.run_sections.training import Teacher as TeacherSpec
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import Backoff
from rlrun.service.client import request
from rlrun.service.errors import FatalError, RequestRejected, ServiceUnavailable

from rlrun_orchestrator.data.groups import Group
from rlrun_orchestrator.data.trajectories import TokenSequence

log = logging.getLogger(__name__)

LIMIT = 5.0
"""Limit in nats. Beyond a factor of 150 between the two probabilities the size carries no information."""
PARALLEL = 32
"""Number of concurrent requests to the teacher. Its engine batches them."""
TIMEOUT_SECONDS = 300.0
"""Timeout of one request in seconds."""
COMPONENT = "teacher"


class DistillationTeacher:
    """Client of an OpenAI endpoint with vLLM's `prompt_logprobs`."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        spec: TeacherSpec,
        report: Callable[[str, Problem | None], None],
        *,
        deadline: float,
        first_pause: float = 0.5,
    ) -> None:
        """`report(component, problem)` receives what is waited for. `deadline`: seconds after which an unreachable
        teacher ends the attempt.
        """
        self._http = http
        self._url = f"{spec.url.rstrip('/')}/completions"
        self._model = spec.model
        self._report = report
        self._deadline = deadline
        self._first_pause = first_pause
        self._semaphore = asyncio.Semaphore(PARALLEL)

    async def score(self, group: Group) -> None:
        """Set the token advantages of every valid rollout of the group. Raises FatalError."""
        rollouts = group.valid_rollouts
        sequences = [sequence for rollout in rollouts for sequence in rollout.trajectory.sequences]
        advantages = iter(await asyncio.gather(*(self._token_advantages(sequence) for sequence in sequences)))
        for rollout in rollouts:
            rollout.token_advantages = [next(advantages) for _ in rollout.trajectory.sequences]

    async def _token_advantages(self, sequence: TokenSequence) -> list[float]:
        body = {
            "model": self._model,
            "prompt": sequence.token_ids,
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        async with self._semaphore:
            answer = await self._request_with_retries(json.dumps(body, separators=(",", ":")).encode())
        return token_advantages(sequence, self._parse(answer, sequence.token_ids))

    async def _request_with_retries(self, body: bytes) -> bytes:
        first_failure: float | None = None
        backoff = Backoff(self._first_pause, 20 * self._first_pause)
        while True:
            try:
                answer = await request(self._http, "POST", self._url, body=body, timeout=TIMEOUT_SECONDS)
                self._report(COMPONENT, None)
                return answer
            except RequestRejected as error:
                if (error.status or 0) < 500:
                    message = (
                        f"the teacher rejected a request: {error.problem.message}; check algorithm.teacher and its "
                        "seqLen"
                    )
                    raise FatalError(_problem(Reason.TEACHER_REFUSED, message), ExitCode.CONFIGURATION) from error
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
            backoff.failed(now)
            await asyncio.sleep(backoff.pause)

    def _parse(self, answer: bytes, token_ids: Sequence[int]) -> list[float]:
        """Return the teacher's log probability of each token, 0.0 for the first, which has no context."""
        try:
            found: list[dict[str, Any] | None] = json.loads(answer)["choices"][0]["prompt_logprobs"]
            if len(found) != len(token_ids):
                raise ValueError(f"{len(found)} log probabilities for {len(token_ids)} tokens")
            # The engine names the token of each position, so that another tokenizer is detected here.
            pairs = zip(token_ids, found, strict=True)
            return [float(entry[str(token)]["logprob"]) if entry else 0.0 for token, entry in pairs]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            message = (
                f"the teacher's answer has no prompt_logprobs of these tokens ({type(error).__name__}: {error}): "
                "algorithm.teacher must be a vLLM server whose model has the tokenizer of the model that is trained"
            )
            raise FatalError(_problem(Reason.TEACHER_ANSWER_UNUSABLE, message), ExitCode.CONFIGURATION) from error


def token_advantages(sequence: TokenSequence, teacher: Sequence[float]) -> list[float]:
    """Return teacher minus policy in nats on sampled tokens, within +-LIMIT, and 0.0 elsewhere. `teacher` has an entry
    per token.
    """
    return [
        max(-LIMIT, min(LIMIT, teacher_logprob - policy_logprob))
        if mask and math.isfinite(teacher_logprob)
        else (-LIMIT if mask else 0.0)
        for teacher_logprob, policy_logprob, mask in zip(teacher, sequence.logprobs, sequence.loss_mask, strict=True)
    ]


def teacher_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the reverse KL divergence on the batch in nats per token, clipped as the advantages are."""
    total, count = 0.0, 0
    for group in groups:
        for rollout in group.valid_rollouts:
            for sequence, advantages in zip(rollout.trajectory.sequences, rollout.token_advantages or [], strict=False):
                total += math.fsum(advantages)
                count += sum(sequence.loss_mask)
    return {"teacher_kl/mean": -total / count} if count else {}


def _problem(reason: str, message: str) -> Problem:
    return Problem(reason=reason, message=message[:1000])
