"""Two processes of a trainer, forked from the test."""

import multiprocessing
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rlrun_trainer.runtime.process_group import ProcessGroup

SECONDS = 120


def on_both(work: Callable[[ProcessGroup], Any]) -> list[Any]:
    """Run `work` in two processes with a group. Returns their results, or type and text of exceptions, by rank."""
    forking = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [forking.Pipe(duplex=False) for _ in range(2)]
        processes = [
            forking.Process(target=_run, args=(work, rank, Path(folder) / "store", pipes[rank][1])) for rank in range(2)
        ]
        for process in processes:
            process.start()
        try:
            results = []
            for receiver, _ in pipes:
                assert receiver.poll(SECONDS), "a process waits for the other"
                results.append(receiver.recv())
            return results
        finally:
            for process in processes:
                process.kill()
                process.join()


def _run(work: Callable[[ProcessGroup], Any], rank: int, store: Path, results: Connection) -> None:
    with suppress(Exception):
        dist.destroy_process_group()
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
    try:
        result = work(ProcessGroup(rank, 2, rank, dist.new_group(backend="gloo", timeout=limit), 2))
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    results.send(result)
