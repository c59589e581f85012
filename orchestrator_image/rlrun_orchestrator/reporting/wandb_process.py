"""Client process for Weights & Biases. It is separate because the client library may hang, fork or exit.

    python -P wandb_process.py

Reads JSON lines: first {"folder": ..., "online": ..., "run": {...}} with arguments of `wandb.init`, then {"step": ...,
"values": {...}} for each line of metrics. The end of the input ends the run. Writes one JSON line when the run is open:
{"mode": "online" or "offline", "problem": ...}. `problem` is the reason if the run is unintentionally offline, and null
otherwise. If there is no key, or the server is unreachable, the run is written to files.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_wandb_values(values: Mapping[str, Any], histogram: Any) -> dict[str, Any]:
    """Convert the values for the client. `histogram(counts, edges)` creates an object of the client's histogram type.

    The edges must be finite, so the outer buckets are drawn one unit wide.
    """
    bounds = values.get("reward/histogram/bounds") or []
    accepted: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(value, list):
            accepted[name] = value
        elif name.endswith("/histogram") and len(value) == len(bounds) + 1 and bounds:
            accepted[name] = histogram(value, [bounds[0] - 1.0, *bounds, bounds[-1] + 1.0])
    return accepted


def open_run(wandb: Any, folder: str, run: Mapping[str, Any], *, online: bool) -> tuple[Any, str | None]:
    """Return the open run, and the reason if it is unintentionally offline. Exits the process if no run can be opened.

    If the client rejects the run's names, the run is offline without them, because `wandb sync` takes names as options.
    """
    problem = None
    unnamed = {**run, "project": None, "entity": None, "name": run["id"]}
    for mode, arguments in (("online", run), ("offline", run), ("offline", unnamed)):
        if mode == "online" and not online:
            continue
        settings = wandb.Settings(
            mode=mode, root_dir=folder, console="off", silent=True, symlink=False, disable_git=True, disable_code=True,
            disable_job_creation=True, x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
        )  # fmt: skip
        try:
            return wandb.init(**arguments, resume="allow", settings=settings), problem
        except Exception as error:
            wandb.teardown()
            # The failed attempt left an empty run, which must not be synced.
            shutil.rmtree(Path(folder) / "wandb", ignore_errors=True)
            problem = problem or f"{type(error).__name__}: {error}"
    sys.exit(problem)


def main() -> None:
    """Read a header and then lines of metrics from standard input until it ends, and log them to Weights & Biases."""
    # The client's own output must not be mistaken for the response.
    answer, sys.stdout = sys.stdout, sys.stderr
    header = json.loads(sys.stdin.readline())
    import wandb  # Costs half a second and tens of megabytes, only in this process.

    run, problem = open_run(wandb, header["folder"], header["run"], online=header["online"])
    # The step is an ordinary metric, because evaluations end after later steps have started, and restarts repeat steps.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    mode = "offline" if problem is not None or not header["online"] else "online"
    print(json.dumps({"mode": mode, "problem": problem}), file=answer, flush=True)

    def histogram(counts: list[float], edges: list[float]) -> Any:
        return wandb.Histogram(np_histogram=([int(count) for count in counts], edges))

    for line in sys.stdin:
        entry = json.loads(line)
        run.log({"step": entry["step"], **to_wandb_values(entry["values"], histogram)})
    run.finish()


if __name__ == "__main__":
    main()
