"""The first adapter of an engine is proven to act before it is loaded."""

import json
import math
import struct
from array import array
from pathlib import Path

import pytest
from rlrun.storage.layout import ADAPTER_WEIGHTS
from rlrun_adapter_sidecar.engine.adapter_probe import LARGE, distance, write_copy
from rlrun_adapter_sidecar.engine.vllm_client import PROBE_NAME

from tests.support.images.stub_trainer.safetensors_file import Tensor, encode, floats, read_shapes, read_tensor

A, B = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "x.lora_B.weight"


def weights(seed: float = 0.125, dtype: str = "F32") -> bytes:
    """An adapter of rank 2 for a layer with three outputs, lora_B last."""
    width = {"F32": 4, "F16": 2, "BF16": 2, "F8_E5M2": 1}[dtype]
    tensors = {A: floats((2, 4), array("f", [seed] * 8)), B: Tensor(dtype, (3, 2), b"\0" * 6 * width)}
    return encode(tensors, {"format": "pt"})


async def test_first_adapter_of_an_engine_is_proven_to_act(sidecar):
    first, second = sidecar.store.publish_policy(1, weights()), sidecar.store.publish_policy(2, weights(0.25))
    assert (await sidecar.put(first))[0] == 200
    assert sidecar.engine.probed == [PROBE_NAME] * 3
    assert (await sidecar.put(second))[0] == 200
    assert len(sidecar.engine.probed) == 3, "later ones have the same names"
    assert sidecar.engine.loaded.keys() == {first.name, second.name}
    assert {path.name for path in sidecar.folder.iterdir()} == {first.name, second.name}


async def test_an_engine_that_ignores_adapters_serves_none(sidecar):
    sidecar.engine.ignores_adapters = True
    policy = sidecar.store.publish_policy(1, weights())
    status, body = await sidecar.put(policy)
    assert (status, body["reason"]) == (422, "AdapterIgnored")
    assert "would be the base model" in body["message"]
    assert sidecar.engine.loaded == {}
    assert await sidecar.call("GET", "/adapters") == (200, {"adapters": []})
    assert 'outcome="AdapterIgnored"' in (await sidecar.call("GET", "/metrics"))[1]
    sidecar.engine.ignores_adapters = False
    assert (await sidecar.put(policy))[0] == 200


async def test_an_engine_that_restarted_is_checked_again(sidecar):
    policy = sidecar.store.publish_policy(1, weights())
    await sidecar.put(policy)
    sidecar.engine.restart()
    sidecar.engine.ignores_adapters = True
    await sidecar.call("GET", "/adapters")
    assert (await sidecar.put(policy))[1]["reason"] == "AdapterIgnored"


@pytest.mark.parametrize("unusable", [b"no safetensors", weights(dtype="F8_E5M2")])
async def test_what_cannot_be_compared_proves_nothing(sidecar, unusable, caplog):
    assert (await sidecar.put(sidecar.store.publish_policy(1, unusable)))[0] == 200
    assert "could not check that the engine applies adapters" in caplog.text


async def test_an_engine_without_log_probabilities_is_trusted(sidecar, caplog):
    sidecar.engine.shy = True
    assert (await sidecar.put(sidecar.store.publish_policy(1, weights())))[0] == 200
    assert "could not check that the engine applies adapters: ValueError: the engine returned 400" in caplog.text
    assert PROBE_NAME not in sidecar.engine.loaded


async def test_the_remains_of_an_interrupted_check_are_replaced(sidecar):
    sidecar.engine.loaded[PROBE_NAME] = "/elsewhere"
    policy = sidecar.store.publish_policy(1, weights())
    assert await sidecar.call("GET", "/adapters") == (200, {"adapters": []})
    assert (await sidecar.put(policy))[0] == 200
    assert sidecar.engine.loaded.keys() == {policy.name}


@pytest.mark.parametrize(("dtype", "encoding"), [("F32", "<f"), ("F16", "<e"), ("BF16", "")])
def test_a_probe_has_the_names_of_the_adapter_and_large_weights(tmp_path: Path, dtype: str, encoding: str) -> None:
    source = tmp_path / "adapter"
    source.mkdir()
    (source / ADAPTER_WEIGHTS).write_bytes(weights(dtype=dtype))
    (source / "adapter_config.json").write_text("{}")
    write_copy(source, tmp_path / "neutral", large=False)
    assert not any(read_tensor(tmp_path / "neutral" / ADAPTER_WEIGHTS, B))
    write_copy(source, tmp_path / "probe", large=True)
    file = tmp_path / "probe" / ADAPTER_WEIGHTS
    assert read_shapes(file) == read_shapes(source / ADAPTER_WEIGHTS) == {A: [2, 4], B: [3, 2]}
    assert read_tensor(file, A) == read_tensor(source / ADAPTER_WEIGHTS, A)
    data = read_tensor(file, B)
    size = len(data) // 6
    cells = [data[start : start + size] for start in range(0, len(data), size)]
    if encoding:
        found = [struct.unpack(encoding, cell)[0] for cell in cells]
    else:
        found = [struct.unpack("<f", b"\0\0" + cell)[0] for cell in cells]
    assert found == [LARGE, LARGE, -LARGE, -LARGE, LARGE, LARGE]
    assert (tmp_path / "probe" / "adapter_config.json").is_file()


@pytest.mark.parametrize("large", [True, False])
def test_no_copy_is_larger_than_its_adapter(tmp_path: Path, large: bool) -> None:
    source = tmp_path / "adapter"
    source.mkdir()
    header = json.dumps({B: {"dtype": "F16", "shape": [400_000_000, 1], "data_offsets": [0, 4]}}).encode()
    (source / ADAPTER_WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ValueError, match="does not match"):
        write_copy(source, tmp_path / "probe", large=large)
    assert not (tmp_path / "probe").exists()


def test_a_rank_that_no_adapter_has_is_not_copied(tmp_path: Path) -> None:
    header = json.dumps({B: {"dtype": "F16", "shape": [0, 100_000_000], "data_offsets": [0, 0]}}).encode()
    source = tmp_path / "adapter"
    source.mkdir()
    (source / ADAPTER_WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ValueError, match="rank 100000000, above the limit of 65536"):
        write_copy(source, tmp_path / "probe", large=True)
    assert not (tmp_path / "probe").exists()


@pytest.mark.parametrize(("noise", "status"), [(1e-4, 200), (1e-2, 422)])
async def test_a_difference_counts_only_above_the_rounding_errors_of_the_engine(sidecar, noise, status):
    sidecar.engine.noise = noise
    assert (await sidecar.put(sidecar.store.publish_policy(1, weights())))[0] == status


async def test_an_engine_whose_answers_differ_by_themselves_proves_nothing(sidecar, caplog):
    sidecar.engine.noise, sidecar.engine.ignores_adapters = 0.6, True
    assert (await sidecar.put(sidecar.store.publish_policy(1, weights())))[0] == 200
    assert "responses to the same request differ by 0.6 nats" in caplog.text


def test_distance_is_that_of_common_tokens_and_infinite_for_few() -> None:
    base = {"a": -0.5, "b": -1.5, "c": -2.5, "d": -3.5, "e": -4.5}
    assert distance(base, base) == 0.0
    moved = {token: logprob + 0.25 for token, logprob in base.items() if token != "e"}
    assert distance(base, moved | {"f": -4.51}) == 0.25
    assert distance(base, {"a": -0.5, "b": -1.5, "x": -1.6, "y": -2.0, "z": -3.0}) == math.inf
