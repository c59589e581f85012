from ipaddress import ip_address
from pathlib import Path

import pytest
from rlrun_egress_proxy.settings import load_settings, read_keys


def folder(tmp_path: Path, **keys: str) -> Path:
    # As Kubernetes mounts a Secret.
    (tmp_path / "..data").mkdir()
    for name, value in keys.items():
        (tmp_path / "..data" / name).write_text(value)
        (tmp_path / name).symlink_to(tmp_path / "..data" / name)
    return tmp_path


def test_all_keys_of_the_secret_are_read(tmp_path: Path) -> None:
    assert read_keys(folder(tmp_path, key="a" * 16, previous="b" * 16 + "\n")) == [b"a" * 16, b"b" * 16]


@pytest.mark.parametrize("keys", [{}, {"key": "short"}, {"key": "a" * 16, "previous": "short"}])
def test_a_missing_or_short_key_is_an_error(tmp_path: Path, keys: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        load_settings({"RLRUN_EGRESS_KEYS": str(folder(tmp_path, **keys))})


def test_private_addresses_are_read(tmp_path: Path) -> None:
    keys = str(folder(tmp_path, key="a" * 16))
    config = load_settings({"RLRUN_EGRESS_KEYS": keys, "RLRUN_EGRESS_PRIVATE_ADDRESSES": "10.1.0.0/16, judge.corp"})
    assert config.rules.address_refusal("x.org", ip_address("10.1.2.3")) is None
    assert config.rules.address_refusal("judge.corp", ip_address("10.9.2.3")) is None
    assert config.rules.address_refusal("x.org", ip_address("10.2.2.3")) is not None
    with pytest.raises(ValueError, match="RLRUN_EGRESS_PRIVATE_ADDRESSES"):
        load_settings({"RLRUN_EGRESS_KEYS": keys, "RLRUN_EGRESS_PRIVATE_ADDRESSES": "10.1.0.0/99"})
