"""Training loops with the Tinker SDK, in the container of `tinker_client`: `python tinker_loop.py NAME ARGUMENT`.

The last line of each is JSON with what the test compares. It imports nothing of this project.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import tinker
from tinker import types

RANK, SEED = 8, 7
ADAM = types.AdamParams(learning_rate=1e-2)
SAVED_AT = (0, 3)
"""Updates of the loop `killed` after which it saves its state."""
MAX_UPDATES = 3_000


def datums(count: int = 4, length: int = 12) -> list[types.Datum]:
    """Sequences of tokens that the example model knows."""
    found = []
    for row in range(count):
        tokens = [3 + (row * 5 + column * 7) % 26 for column in range(length + 1)]
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * length}
        found.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
    return found


def train(client: tinker.TrainingClient, steps: int) -> None:
    """Make updates with the calls sent ahead, as the SDK's documentation advises."""
    sent = []
    for _ in range(steps):
        sent += [client.forward_backward(datums(), "cross_entropy"), client.optim_step(ADAM)]
    for future in sent:
        future.result()


def logprobs(client: tinker.TrainingClient) -> list[list[float]]:
    """Log-probabilities of all tokens, which the wire has as float32."""
    done = client.forward(datums(), "cross_entropy").result()
    return [output["logprobs"].tolist() for output in done.loss_fn_outputs]


def sampled(model: str) -> dict[str, Any]:
    """Log-probabilities of samples after some updates: by the engine that sampled, and by the trainer."""
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=model, rank=RANK, seed=SEED)
    train(client, 20)
    sampler = client.save_weights_and_get_sampling_client()
    prompt = [3, 8, 15, 22, 29]
    params = types.SamplingParams(max_tokens=24, seed=1, stop=[])
    sequences = sampler.sample(types.ModelInput.from_ints(prompt), 8, params).result().sequences
    found, data = [], []
    for sequence in sequences:
        tokens = [*prompt, *sequence.tokens]
        weights = [0.0] * (len(prompt) - 1) + [1.0] * len(sequence.tokens)
        inputs = {"target_tokens": tokens[1:], "weights": weights}
        data.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
        found += sequence.logprobs or []
    outputs = client.forward(data, "cross_entropy").result().loss_fn_outputs
    trained = [value for output in outputs for value in output["logprobs"].tolist()[len(prompt) - 1 :]]
    scored = sampler.compute_logprobs(types.ModelInput.from_ints([*prompt, *sequences[0].tokens])).result()
    return {"sampled": found, "trained": trained, "scored": scored[len(prompt) :]}


def first_samples(model: str) -> dict[str, Any]:
    """Seconds from the creation of a model to its first sample, for models of one program in a pool that runs."""
    service = tinker.ServiceClient()
    seconds = []
    for number in range(8):
        started = time.monotonic()
        client = service.create_lora_training_client(base_model=model, rank=RANK, seed=number)
        sampler = client.save_weights_and_get_sampling_client()
        params = types.SamplingParams(max_tokens=1, seed=1)
        sampler.sample(types.ModelInput.from_ints([3, 8, 15]), 1, params).result()
        seconds.append(time.monotonic() - started)
        print(f"model {number}: {seconds[-1]:.2f} s", flush=True)
    return {"seconds": seconds}


def continued(model: str) -> dict[str, Any]:
    """Two updates, and two more: by the same client, and by clients that load the state after the first two."""
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=model, rank=RANK, seed=SEED)
    before = logprobs(client)
    train(client, 2)
    state = client.save_state("two").result().path
    weights = client.save_weights_for_sampler("two").result().path
    saved = logprobs(client)
    train(client, 2)
    found = {"model": client.model_id, "state": state, "weights": weights, "before": before, "saved": saved}
    found["uninterrupted"] = logprobs(client)
    for name in ("create_training_client_from_state_with_optimizer", "create_training_client_from_state"):
        loaded = getattr(service, name)(state)
        key = "with_optimizer" if name.endswith("optimizer") else "without_optimizer"
        found[f"loaded_{key}"] = logprobs(loaded)
        train(loaded, 2)
        found[key] = logprobs(loaded)
    return found


def killed(model: str) -> dict[str, Any]:
    """Train until a call fails, and go on from the newest state. Prints each update that the client has a result of."""
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=model, rank=RANK, seed=SEED)
    states: list[str] = []
    for update in range(MAX_UPDATES):
        try:
            train(client, 1)
            if update in SAVED_AT:
                states.append(client.save_state(f"state-{update}").result().path)
            print(f"update {update}", flush=True)
        except tinker.RequestFailedError as error:
            again = service.create_training_client_from_state_with_optimizer(states[-1])
            train(again, 1)
            return {"states": states, "updates": update, "category": str(error.category), "message": error.message}
    raise SystemExit("no call failed")


def deleted(state: str) -> dict[str, Any]:
    """Delete a saved state."""
    tinker.ServiceClient().create_rest_client().delete_checkpoint_from_tinker_path(state).result()
    return {}


def peft(folder: str) -> dict[str, Any]:
    """Load the adapter in FOLDER/adapter on the model in FOLDER/base with stock peft, and compute log-probabilities."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(Path(folder) / "base", dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, str(Path(folder) / "adapter"))
    found = []
    for datum in datums():
        tokens = torch.tensor([datum.model_input.to_ints()])
        targets = torch.tensor(datum.loss_fn_inputs["target_tokens"].tolist())
        with torch.no_grad():
            predicted = torch.log_softmax(loaded(input_ids=tokens).logits[0].float(), -1)
        found.append(predicted.gather(-1, targets[:, None])[:, 0].tolist())
    return {"logprobs": found}


LOOPS = (continued, killed, deleted, peft, sampled, first_samples)

if __name__ == "__main__":
    print(json.dumps({loop.__name__: loop for loop in LOOPS}[sys.argv[1]](sys.argv[2])))
