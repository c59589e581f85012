"""Name and record of a batch."""

from rlrun.protocol.trainer import TrainBatch
from rlrun_orchestrator.data.example_buffer import BufferSettings, ExampleBuffer
from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample
from rlrun_orchestrator.training.batch import Batch


def batch_of(*tokens: int) -> Batch:
    samples = [{"tokenIds": list(tokens), "lossMask": [True], "logprobs": [-0.5], "advantage": 0.1, "policyVersion": 0}]
    example = ExampleSampler(ExampleBuffer({"a": 50}, None, BufferSettings(filtering=True))).next_example(["a"])
    assert example is not None
    return Batch(3, samples, [SampledExample(7, example.example)], 1, reward=0.5).finalize()


def test_id_of_a_batch_is_a_hash_of_its_samples() -> None:
    assert batch_of(1).id == batch_of(1).id != batch_of(2).id
    parsed = TrainBatch.model_validate_json(batch_of(1).body)
    assert parsed.batch_id == batch_of(1).id
    assert parsed.samples[0].token_ids == [1]
