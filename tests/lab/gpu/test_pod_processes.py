import json
from pathlib import Path

import pytest
from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.storage_access import SERVER_VARIABLE
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.platform import resolve

from tests.gpu.pod_processes import Machine, Planned, Ports, plan, token_of

IDENTITY = RunIdentity("gpu", "run", "uid-1", 1, 1)
SETTINGS = OperatorSettings.model_validate(
    {"s3": {"bucket": "rlrun", "credentialsSecret": {"namespace": "none", "name": "none"}}}
)
PORTS = Ports(trainer=11001, engine=11002, sidecar=11003, gateway=11004, status=11005, environment=11006)
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
ORCHESTRATOR = ("engine-access", "sidecar", "orchestrator", "environment")


def resolved(environments: int = 1, model_id: str = "a/b") -> ResolvedRun:
    spec = {"model": model_id, "sampling": {"maxTokens": 8}, "env": [{"id": f"o/e{i}"} for i in range(environments)]}
    model = {"id": model_id, "source": "s3://rlrun/models/a", "seqLen": 512, "trainer": {"gpus": 1}}
    run, base = RLRunSpec.model_validate(spec), RLModelSpec.model_validate(model)
    return resolve(IDENTITY, SETTINGS, run, base, None)


def planned(folder: Path, weights: Path = Path("/weights"), model_id: str = "a/b") -> dict[str, Planned]:
    pythons = dict.fromkeys(ORCHESTRATOR, "/venvs/orchestrator") | {"trainer": "/venvs/t", "vllm": "/venvs/v"}
    machine = Machine(folder, weights, KEYS, pythons, {"RLRUN_DEVICE": "cuda"})
    return {p.name: p for p in plan(IDENTITY, SETTINGS, resolved(model_id=model_id), PORTS, machine, b"key")}


def test_each_container_is_a_process_with_the_interpreter_of_its_image(tmp_path: Path) -> None:
    found = planned(tmp_path)
    assert set(found) == {"environment", "trainer", "engine-access", "vllm", "sidecar", "orchestrator"}
    assert {name: p.command[0] for name, p in found.items()} == {
        **dict.fromkeys(ORCHESTRATOR, "/venvs/orchestrator"),
        "trainer": "/venvs/t",
        "vllm": "/venvs/v",
    }
    # The engine imports the middleware when it starts.
    assert list(found).index("engine-access") < list(found).index("vllm")


def test_ports_are_those_of_the_machine_everywhere(tmp_path: Path) -> None:
    found = planned(tmp_path)
    command = list(found["vllm"].command)
    assert command[command.index("--port") + 1] == "11002"
    assert found["trainer"].environment["RLRUN_PORT"] == "11001"
    assert found["sidecar"].environment["RLRUN_ENGINE_URL"] == "http://127.0.0.1:11002"
    orchestrator = found["orchestrator"].environment
    assert (orchestrator["RLRUN_INFERENCE_PORT"], orchestrator["RLRUN_SIDECAR_PORT"]) == ("11002", "11003")
    run = json.loads((tmp_path / "config/run.json").read_text())
    assert run["endpoints"]["trainerUrl"] == "http://127.0.0.1:11001"
    assert run["endpoints"]["environments"][0]["url"] == "http://127.0.0.1:11006"


def test_only_those_that_use_s3_in_a_pod_have_the_key(tmp_path: Path) -> None:
    found = planned(tmp_path)
    with_key = {name for name, process in found.items() if "AWS_SECRET_ACCESS_KEY" in process.environment}
    assert with_key == {"trainer", "sidecar", "orchestrator"}
    assert not [name for name, process in found.items() if SERVER_VARIABLE in process.environment]


def test_processes_have_the_tokens_of_their_pods(tmp_path: Path) -> None:
    found = planned(tmp_path)
    token = token_of(list(found.values()))
    assert token
    assert found["trainer"].environment[TOKEN_VARIABLE] == found["vllm"].environment[TOKEN_VARIABLE] == token
    assert found["environment"].environment[TOKEN_VARIABLE] not in ("", token)
    assert not [p.name for p in found.values() if any(token in part for part in p.command)]


def test_a_folder_that_contains_a_path_of_the_pod_is_named_once(tmp_path: Path) -> None:
    """/models is a mount of the pod, and the weights may be in a folder of that name here."""
    weights = tmp_path / "models/base"
    found = planned(tmp_path / "adapters", weights)
    assert found["trainer"].environment["RLRUN_MODEL_DIR"] == str(weights)
    assert str(weights) in found["vllm"].command
    assert Path(found["sidecar"].environment["RLRUN_ADAPTERS_DIR"]).is_dir()


def test_the_name_of_a_model_is_no_path(tmp_path: Path) -> None:
    command = planned(tmp_path, model_id="acme/models")["vllm"].command
    assert command[command.index("--served-model-name") + 1] == "acme/models"


def test_a_run_with_several_environments_is_refused() -> None:
    with pytest.raises(ValueError, match="several environments"):
        PORTS.endpoints(resolved(environments=2))
