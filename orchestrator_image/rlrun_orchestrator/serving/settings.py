"""What the serving sidecar takes from its surroundings."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError
from rlrun.schema.base import Schema
from rlrun.schema.names import snake
from rlrun.schema.serving import CREDENTIALS_DIR, ORDER_DIR, ORDER_KEY
from rlrun.schema.wire import INFERENCE_PORT, SIDECAR_PORT

PREFIX = "RLRUN_"


class ServingSettings(Schema):
    """Times are seconds; each field has a variable `RLRUN_<FIELD>`, upper case."""

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
    names = {f"{PREFIX}{field.upper()}": field for field in ServingSettings.model_fields}
    try:
        return ServingSettings.model_validate({f: environment[n] for n, f in names.items() if environment.get(n)})
    except ValidationError as error:
        first = error.errors()[0]
        variable = PREFIX + snake(str(first["loc"][-1])).upper()
        raise ValueError(f"{variable}: {first['msg']}") from error
