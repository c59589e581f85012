"""Settings of rlrun-tinker."""

from pathlib import Path

import pytest
from rlrun_tinker.settings import load_settings

SERVER = {"RLRUN_TINKER_SERVER": "https://rlrun-server.rlrun-system.svc:8443/"}


def test_the_address_of_rlrun_server_is_needed() -> None:
    assert load_settings(SERVER).server == "https://rlrun-server.rlrun-system.svc:8443"
    for wrong in ({}, {"RLRUN_TINKER_SERVER": "rlrun-server:8443"}, {"RLRUN_TINKER_SERVER": "https://a/?b"}):
        with pytest.raises(ValueError, match=r"^RLRUN_TINKER_SERVER: "):
            load_settings(wrong)


def test_an_authority_must_be_readable(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    for content in (None, "no certificate"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(ValueError, match=f"RLRUN_TINKER_SERVER_AUTHORITY: {file}"):
            load_settings({**SERVER, "RLRUN_TINKER_SERVER_AUTHORITY": str(file)})
    assert load_settings(SERVER).trust() is None
