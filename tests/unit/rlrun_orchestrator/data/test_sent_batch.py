"""The record of a batch that was sent to the trainer."""

from pydantic import TypeAdapter
from rlrun.protocol.train_batch import Sample
from rlrun_orchestrator.data.example_buffer import BufferSettings, ExampleBuffer
from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.training.batch import Batch


def batch_of(*tokens: int) -> Batch:
    samples = [Sample(token_ids=tokens, loss_mask=[True], logprobs=[-0.5], advantage=0.1, policy_version=0)]
    example = ExampleSampler(ExampleBuffer({"a": 50}, None, BufferSettings(filtering=True))).next_example(["a"])
    assert example is not None
    return Batch(3, samples, [SampledExample(7, example.example)], 1, reward=0.5).finalize()


def test_record_of_a_batch_survives_json() -> None:
    kept = batch_of(1).to_record()
    adapter = TypeAdapter(SentBatch)
    assert adapter.validate_json(adapter.dump_json(kept)) == kept
