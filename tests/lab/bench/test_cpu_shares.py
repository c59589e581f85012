import os
import time
from pathlib import Path

from bench.cpu_shares import OTHER, ProcessTime, cpu_seconds_between, part_of, read


def test_cpu_time_of_this_process_is_read() -> None:
    before = read()
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = read()
    title = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode()
    assert after[os.getpid()].command == title.strip()
    assert after[os.getpid()].seconds - before[os.getpid()].seconds >= 0.15


def test_cpu_time_is_summed_by_part_largest_first() -> None:
    before = {
        1: ProcessTime("python -m rlrun_trainer", 10.0),
        2: ProcessTime("VLLM::EngineCore", 5.0),
        9: ProcessTime("sh", 1.0),
    }
    after = {
        1: ProcessTime("python -m rlrun_trainer", 11.0),
        2: ProcessTime("VLLM::EngineCore", 8.0),
        3: ProcessTime("VLLM::EngineCore", 0.5),  # a replica that started in between
        9: ProcessTime("sh", 1.0),
    }
    assert list(cpu_seconds_between(before, after).items()) == [("engine", 3.5), ("trainer", 1.0)]


def test_worker_and_server_are_different_parts() -> None:
    assert part_of("python -m rlrun_environment.worker /tmp/0.sock") == "environment worker"
    assert part_of("python -m rlrun_environment") == "environment server"
    assert part_of("python -m rlrun_orchestrator") == "orchestrator"
    assert part_of("/sbin/init") == OTHER
