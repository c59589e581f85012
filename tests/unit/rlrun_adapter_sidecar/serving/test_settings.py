"""What the serving sidecar reads from its pod: settings and the order."""

from pathlib import Path

import pytest
from rlrun.protocol.serving import DesiredAdapters, ServedAdapter
from rlrun_adapter_sidecar.serving.__main__ import read_order
from rlrun_adapter_sidecar.serving.settings import settings_from


def test_invalid_setting_is_named_in_the_error() -> None:
    settings = settings_from({"RLRUN_MAX_LORA_RANK": "32", "RLRUN_ADAPTERS_DIR": "/a"})
    assert (settings.max_lora_rank, str(settings.adapters_dir)) == (32, "/a")
    with pytest.raises(ValueError, match="RLRUN_MAX_LORA_RANK"):
        settings_from({})


def test_malformed_order_is_named_in_the_error(tmp_path: Path) -> None:
    order = DesiredAdapters(base="a/b", adapters=[ServedAdapter(name="a/b:x", uri="s3://x/y", step=1)])
    path = tmp_path / "order.json"
    path.write_text(order.model_dump_json(by_alias=True))
    assert read_order(path) == order
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not a valid DesiredAdapters of this version: base: Field required"):
        read_order(path)
    with pytest.raises(ValueError, match="could not read the list of adapters"):
        read_order(tmp_path / "none")
