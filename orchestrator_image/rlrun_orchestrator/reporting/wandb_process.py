"""Writes one run of Weights & Biases: a process of its own, because its client hangs, forks and exits as it likes.

    python -P wandb_writer.py

Reads JSON lines: first what the run is (`Header`), then {"step": ..., "values": {...}} for each line of metrics; the
end of the input ends the run. Writes one JSON line when the run is open: {"mode": "online"} or {"mode": "offline",
"problem": ...}. Without a key, or where the server cannot be reached, the run is kept in files.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Header:
    """What the run is."""

    folder: str
    """Where the files go."""
    project: str
    entity: str | None
    name: str
    id: str
    """Stays the same over restarts, so that they continue one run."""
    online: bool
    init_seconds: float = 60.0
    config: dict[str, Any] = field(default_factory=dict)

    def line(self) -> bytes:
        """As the first line of input."""
        return json.dumps(asdict(self)).encode() + b"\n"


def logged(values: Mapping[str, Any], histogram: Any) -> dict[str, Any]:
    """The values as the client takes them; `histogram(counts, edges)` makes one of its histograms.

    Its edges have to be finite: the outer buckets are drawn one unit wide.
    """
    bounds = values.get("reward/histogram/bounds") or []
    found: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(value, list):
            found[name] = value
        elif name.endswith("/histogram") and len(value) == len(bounds) + 1 and bounds:
            found[name] = histogram(value, [bounds[0] - 1.0, *bounds, bounds[-1] + 1.0])
    return found


def open_run(wandb: Any, header: Header) -> tuple[Any, str | None]:
    """The open run, and why it is offline although it should not be."""
    if header.online:
        try:
            return _init(wandb, header, "online"), None
        except Exception as error:
            wandb.teardown()
            # What the attempt left is an empty run, which nobody wants to sync.
            shutil.rmtree(Path(header.folder) / "wandb", ignore_errors=True)
            problem = f"{type(error).__name__}: {error}"
            return _init(wandb, header, "offline"), problem
    return _init(wandb, header, "offline"), None


def _init(wandb: Any, header: Header, mode: str) -> Any:
    settings = wandb.Settings(
        mode=mode,
        root_dir=header.folder,
        console="off",
        silent=True,
        symlink=False,
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        init_timeout=header.init_seconds,
        login_timeout=header.init_seconds,
    )
    run = wandb.init(
        project=header.project,
        entity=header.entity,
        name=header.name,
        id=header.id,
        resume="allow",
        config=header.config,
        settings=settings,
    )
    # Evaluations end after later steps have begun, and a restart goes back some: the step is a metric like any other.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def main() -> int:
    """Until the input ends."""
    # Whatever the client prints must not look like our answer.
    answer, sys.stdout = sys.stdout, sys.stderr
    header = Header(**json.loads(sys.stdin.readline()))
    import wandb  # half a second, and tens of megabytes of memory, that only this process spends

    run, problem = open_run(wandb, header)
    mode = "offline" if problem is not None or not header.online else "online"
    print(json.dumps({"mode": mode, "problem": problem}), file=answer, flush=True)

    def histogram(counts: list[float], edges: list[float]) -> Any:
        return wandb.Histogram(np_histogram=([int(count) for count in counts], edges))

    for line in sys.stdin:
        told = json.loads(line)
        run.log({"step": told["step"], **logged(told["values"], histogram)})
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
