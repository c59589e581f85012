"""A training loop on the unmodified SDK, tinker 0.38.0 with torch, which sends each command twice.

TINKER_BASE_URL=… TINKER_API_KEY=… python tests/support/tinker_sdk_check.py MODEL

Tokens are below 30, the vocabulary of the example model. Prints what it found as JSON, after it has checked what is
true of any server. It imports nothing of this repository, because it runs in an environment of its own.
"""

import asyncio
import json
import sys
import time
from typing import Any

import tinker
import torch
from tinker import types
from tinker._base_client import AsyncAPIClient
from tinker.lib.api_future_impl import _APIFuture
from tinker.proto import tinker_public_pb2

DATUMS = 2500
LENGTH = 8
COMMANDS = (
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "load_weights",
    "create_model",
)
FORWARD_BACKWARD = "/api/v1/forward_backward"


class Wire:
    """Requests of the SDK as they leave it."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        """Numbers of the forward_backward requests, in the order of their sending."""
        self.futures: list[types.UntypedAPIFuture] = []
        post = AsyncAPIClient.post

        async def post_twice(client: Any, path: str, **others: Any) -> Any:
            if path == FORWARD_BACKWARD:
                message = tinker_public_pb2.ForwardBackwardRequest()
                message.ParseFromString(others["body"])
                self.seqs.append(message.seq_id)
            if path.rpartition("/")[2] not in COMMANDS:
                return await post(client, path, **others)
            first = await post(client, path, **others)
            second = await post(client, path, **others)
            assert first.request_id == second.request_id, "the same request has another future"
            if path == FORWARD_BACKWARD:
                self.futures.append(second)
            return second

        AsyncAPIClient.post = post_twice


def datums(count: int) -> list[types.Datum]:
    """Return datums whose tokens differ."""
    found = []
    for number in range(count):
        tokens = [(number + place) % 30 for place in range(LENGTH + 1)]
        weights = [1.0 if place % 2 else -0.25 for place in range(LENGTH)]
        inputs: dict[str, Any] = {"target_tokens": tokens[1:], "weights": weights}
        found.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
    return found


def sparse_datum() -> types.Datum:
    """Return a datum with mostly zero [T, K] inputs, which the SDK sends as CSR."""
    targets, weights = torch.zeros(LENGTH, 5, dtype=torch.int64), torch.zeros(LENGTH, 5)
    targets[:, 0], weights[:, 0] = torch.arange(1, LENGTH + 1), 0.5
    inputs: dict[str, Any] = {"target_tokens": targets, "weights": weights}
    found = types.Datum(model_input=types.ModelInput.from_ints(list(range(LENGTH))), loss_fn_inputs=inputs)
    assert found.loss_fn_inputs["weights"].sparse_crow_indices is not None
    return found


def squared(_: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """Return a custom loss and a metric."""
    loss = torch.stack([each.square().sum() for each in logprobs]).sum()
    return loss, {"squared:sum": float(loss.detach())}


def wait_twice(client: tinker.TrainingClient, future: types.UntypedAPIFuture) -> None:
    """Wait for one future with two waiters at the same time."""
    waiters = [
        _APIFuture(
            types.ForwardBackwardOutput,
            client.holder,
            future,
            request_start_time=time.time(),
            request_type="ForwardBackward",
        )
        for _ in range(2)
    ]
    first, second = (waiter.result(timeout=120) for waiter in waiters)
    assert first.metrics == second.metrics
    assert first.loss_fn_outputs[0]["logprobs"].data == second.loss_fn_outputs[0]["logprobs"].data


def train(client: tinker.TrainingClient, wire: Wire) -> list[dict[str, float]]:
    """Train a little, and return the metrics of each forward_backward."""
    found = []
    for data in (datums(DATUMS), [sparse_datum()]):
        forward = client.forward_backward(data, "cross_entropy")
        step = client.optim_step(types.AdamParams(learning_rate=1e-3))
        output = forward.result(timeout=300)
        assert len(output.loss_fn_outputs) == len(data)
        for datum, record in zip(data, output.loss_fn_outputs, strict=True):
            shape = datum.loss_fn_inputs["target_tokens"].shape or [LENGTH]
            assert record["logprobs"].shape == list(shape), record["logprobs"].shape
        step.result(timeout=120)
        found.append(output.metrics)
        wait_twice(client, wire.futures[-1])
    custom = client.forward_backward_custom(datums(10), squared)
    client.optim_step(types.AdamParams(learning_rate=1e-3))
    metrics = custom.result(timeout=120).metrics
    assert {"squared:sum", "loss:sum", "surrogate_loss:sum"} <= metrics.keys(), metrics
    assert metrics["loss:sum"] == metrics["squared:sum"]
    return [*found, metrics]


def main(model: str) -> None:
    """Run the loop."""
    wire = Wire()
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(model, rank=8, user_metadata={"loop": "own"}).result()
    info = client.get_info()
    assert info.model_data.model_name == model
    metrics = train(client, wire)
    # The first chunk of a batch is sent last, and each request twice.
    sent = list(dict.fromkeys(wire.seqs))
    assert set(sent[:3]) == {1, 2, 3}, sent
    assert sent[2] == 1, sent
    path = client.save_state("loop").result(timeout=120).path
    sampler = client.save_weights_for_sampler("final").result(timeout=120).path
    again = service.create_training_client_from_state_with_optimizer(path).result()
    again.forward_backward(datums(2), "cross_entropy").result(timeout=120)
    rest = service.create_rest_client()
    for seconds in (7200, None):
        rest.set_checkpoint_ttl_from_tinker_path(path, seconds).result(timeout=60)
    run = asyncio.run(_training_run(rest, str(client.model_id)))
    assert run.user_metadata == {"loop": "own"}
    assert run.last_checkpoint is not None
    assert run.last_checkpoint.tinker_path == path
    rest.delete_checkpoint_from_tinker_path(sampler).result()
    service.close("success").result()
    print(
        json.dumps({"model": str(client.model_id), "path": path, "sampler": sampler, "metrics": metrics, "sent": sent})
    )


async def _training_run(rest: Any, model: str) -> Any:
    return await rest.get_training_run(model)


if __name__ == "__main__":
    main(sys.argv[1])
