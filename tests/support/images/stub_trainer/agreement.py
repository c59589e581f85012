"""Comparison of the engine's log-probabilities with those of the policies that a sample names.

Stub engine and stub trainer compute them with one language model from the digest of the adapter's file. They are equal
if the engine drew from that very adapter, and differ if it served another run's or version's.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlrun.protocol.train_batch import Sample, SampleLoss

from tests.support.images.stub_engine.completion import LOWEST, Completion, SamplingParameters, distribution
from tests.support.images.stub_engine.language_model import LanguageModel
from tests.support.images.stub_engine.tokenizer import CharacterTokenizer


class Agreement:
    """Log-probabilities of the stub engine's language model for the tokenizer in a model's folder."""

    def __init__(self, model_dir: Path) -> None:
        """Read the tokenizer. Raises TokenizerUnsupported or OSError."""
        self._tokenizer = CharacterTokenizer(model_dir)
        self._model = LanguageModel(self._tokenizer)

    def mismatches(
        self, samples: Sequence[Sample], policies: Mapping[int, str], temperature: float
    ) -> dict[int, list[float]]:
        """Return r - log r - 1 of each sampled token in nats, by the policy version that sampled it.

        `policies` has the digests of adapters by version. Tokens of other versions are left out: their adapter was
        made by an earlier process.
        """
        found: dict[int, list[float]] = {}
        parameters = SamplingParameters(max_tokens=1, temperature=temperature)
        for sample in samples:
            if sample.loss is not SampleLoss.policy:
                continue
            for at, (is_sampled, version) in enumerate(zip(sample.loss_mask, versions_of(sample), strict=True)):
                digest = policies.get(version)
                if is_sampled and digest is not None:
                    probabilities = self._model.next_token(digest, list(sample.token_ids[:at]))
                    ours = distribution(probabilities, self._tokenizer, parameters, Completion())
                    ratio = ours.get(sample.token_ids[at], LOWEST) - sample.logprobs[at]
                    found.setdefault(version, []).append(math.exp(ratio) - ratio - 1)
        return found


def versions_of(sample: Sample) -> list[int]:
    """Return the version of the policy for each token. Meaningless for tokens that were not sampled."""
    versions = [sample.policy_version] * len(sample.token_ids)
    for start, version in zip(sample.turn_starts, sample.turn_versions or (), strict=False):
        versions[start:] = [version] * (len(versions) - start)
    return versions
