"""What the serving sidecar takes from its surroundings."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field
from rlrun.schema.base import Schema
from rlrun.schema.serving import CREDENTIALS_DIR, ORDER_DIR, ORDER_KEY
from rlrun.schema.wire import INFERENCE_PORT, SIDECAR_PORT
from rlrun.service.settings import read_settings


class ServingSettings(Schema):
    """Times are seconds."""

    engine_url: str = Field(default=f"http://127.0.0.1:{INFERENCE_PORT}", pattern=r"^https?://")
    adapters_dir: Path = Path("/adapters")
    """Shared with the engine, under the same path there."""
    order_path: Path = Path(ORDER_DIR) / ORDER_KEY
    """What to serve until the operator says something else."""
    credentials_dir: Path = Path(CREDENTIALS_DIR)
    """One file per AWS_* variable, read again for every download."""
    max_lora_rank: int = Field(ge=1)
    """The engine's --max-lora-rank."""
    sidecar_port: int = SIDECAR_PORT
    download_deadline: float = Field(default=600.0, gt=0)
    load_deadline: float = Field(default=120.0, gt=0)
    unload_grace: float = Field(default=120.0, ge=0)
    """How long files stay after an unload: requests under way may make the engine read them again."""
    check_pause: float = Field(default=2.0, gt=0)
    """Between two looks at the engine."""


def settings_from(environment: Mapping[str, str] = os.environ) -> ServingSettings:
    """Raises ValueError that names the variable that does not fit."""
    return read_settings(ServingSettings, environment)
