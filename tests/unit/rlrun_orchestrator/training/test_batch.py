"""Name and record of a batch."""

import pytest
from rlrun.constants import ExitCode, Reason
from rlrun.protocol import train_batch
from rlrun.protocol.train_batch import Sample
from rlrun.service.errors import FatalError
from rlrun_orchestrator.data.example_buffer import BufferSettings, ExampleBuffer
from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample
from rlrun_orchestrator.training.batch import Batch

from tests.support.train_bodies import read_body


def batch_of(*tokens: int) -> Batch:
    samples = [Sample(token_ids=tokens, loss_mask=[True], logprobs=[-0.5], advantage=0.1, policy_version=0)]
    example = ExampleSampler(ExampleBuffer({"a": 50}, None, BufferSettings(filtering=True))).next_example(["a"])
    assert example is not None
    return Batch(3, samples, [SampledExample(7, example.example)], 1, reward=0.5).finalize()


def test_id_of_a_batch_is_a_hash_of_its_samples() -> None:
    assert batch_of(1).id == batch_of(1).id != batch_of(2).id
    body = batch_of(1).body
    assert body is not None
    parsed = read_body(b"".join(body.pieces()), body.size)
    assert parsed.batch_id == batch_of(1).id
    assert list(parsed.samples[0].token_ids) == [1]


def test_a_batch_that_is_too_large_for_the_trainer_ends_the_run_with_the_fields_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train_batch, "MAX_SAMPLES", 0)
    with pytest.raises(FatalError, match="1 sequences; at most 0 are allowed") as ended:
        batch_of(1)
    assert (ended.value.exit_code, ended.value.problem.reason) == (ExitCode.CONFIGURATION, Reason.BATCH_TOO_LARGE)
    for field in ("spec.batchSize", "spec.tokenBatchSize", "spec.rolloutsPerExample", "spec.trajectoryStrategy"):
        assert field in ended.value.problem.message
