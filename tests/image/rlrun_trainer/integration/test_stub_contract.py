"""The stub trainer of the end-to-end tests answers as the real one does."""

from pathlib import Path

from peft import PeftModel
from rlrun.storage.store import Store
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.support.contracts.trainer_contract import differences, observe
from tests.support.images.stub_trainer.backend import StubBackend
from tests.support.trainer_client import serving
from tests.support.trainer_requests import spec


async def test_real_and_stub_trainer_are_alike(base: BaseModel, model_dir: Path, store: Store, run_uri: str) -> None:
    settings = TrainerSettings(model_dir=model_dir, slots=2)
    async with serving(CollectiveExecutor(base), store, settings) as client:
        real = await observe(client, store, f"{run_uri}-real")
    async with serving(StubBackend(settings), store, settings) as client:
        stub = await observe(client, store, f"{run_uri}-stub")
    drift = differences(real, stub)
    assert not drift, "\n".join(drift)


def test_stock_peft_loads_the_adapter_of_the_stub(model_dir: Path, tmp_path: Path) -> None:
    backend = StubBackend(TrainerSettings(model_dir=model_dir))
    backend.open_slot("run", spec("s3://bucket/run"))
    files = backend.policy_files("run")
    assert isinstance(files, dict)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir), tmp_path)
    loaded = {name.replace(".default.", "."): p for name, p in model.named_parameters() if ".lora_" in name}
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert loaded.keys() == stored.keys()
    assert all(tensor.equal(stored[name]) for name, tensor in loaded.items())
