"""Sizes of a scenario, from the command line."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScenarioOptions:
    """Sizes and times of one repetition."""

    runs: int
    """Runs created at once."""
    finished: int
    """Finished runs beside them."""
    step_seconds: float = 10.0
    """Time between two steps of a run that trains."""
    rest_seconds: float = 45.0
    """Time of each measurement of quiet runs and of runs that train."""
    peers: bool = True
    """Measure Kubeflow Trainer too."""
    churn_rate: float = 0.5
    """Runs created per second."""
    churn_seconds: float = 300.0
    """Time for which runs are created."""
    gap_seconds: float = 15.0
    """Time without watches."""
    delay_seconds: float = 0.05
    """Injected latency of the API server."""
    soak_seconds: float = 3600.0
    """Time with steps in which memory must not grow."""
    quiet_seconds: float = 600.0
    """Time without a step in which nothing may be written."""
