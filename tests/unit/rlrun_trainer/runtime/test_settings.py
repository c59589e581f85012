from pathlib import Path

import pytest
from rlrun_trainer.runtime.settings import TrainerSettings, cpu_threads, parse


def test_flags_win_over_variables_over_defaults() -> None:
    settings = parse(["--slots", "3"], {"RLRUN_SLOTS": "2", "RLRUN_PORT": "9000", "RLRUN_THREADS": "1"})
    assert (settings.slots, settings.port, settings.threads) == (3, 9000, 1)
    assert settings.model_dir == TrainerSettings().model_dir
    assert settings.model is None


def test_recovery_copies_are_made_only_on_request() -> None:
    assert parse([], {}).recovery_seconds == 0
    assert parse([], {"RLRUN_RECOVERY_SECONDS": "60"}).recovery_seconds == 60
    assert parse(["--recovery-seconds", "1.5"], {"RLRUN_RECOVERY_SECONDS": "60"}).recovery_seconds == 1.5


@pytest.mark.parametrize("arguments", [["--slots", "0"], ["--device", "tpu"], ["--port", "x"], ["--unknown"]])
def test_bad_flags_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments, {})


@pytest.mark.parametrize(("text", "limit"), [("150000 100000", 2), ("100000 100000", 1), ("20000 100000", 1)])
def test_threads_follow_the_cpu_limit(tmp_path: Path, text: str, limit: int) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    cores = cpu_threads({}, tmp_path / "none")
    assert cpu_threads({}, file) == min(limit, cores)
    file.write_text("max 100000")
    assert cpu_threads({}, file) == cores
    assert cpu_threads({"RLRUN_THREADS": "5"}, file) == 5


def test_processes_of_one_machine_share_its_cores(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    file.write_text("800000 100000")
    cores = cpu_threads({}, file)
    assert cpu_threads({"LOCAL_WORLD_SIZE": "2"}, file) == max(1, cores // 2)
    assert cpu_threads({"LOCAL_WORLD_SIZE": "64"}, file) == 1
    assert cpu_threads({"LOCAL_WORLD_SIZE": "2", "RLRUN_THREADS": "3"}, file) == 3


def test_the_pod_tells_how_many_gpus_it_requests_and_how_many_divide_the_weights() -> None:
    variables = {"RLRUN_GPUS": "8", "RLRUN_SHARD_SIZE": "4", "RLRUN_DEVICE": "cpu"}
    found = parse([], variables)
    assert (found.gpus, found.shard_size, found.device) == (8, 4, "cpu")
    assert parse([], {"RLRUN_GPUS": "0"}).gpus == 0, "none, which is not the same as any number"
    none = parse([], {})
    assert (none.gpus, none.shard_size, none.device) == (None, None, "auto")
