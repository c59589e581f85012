"""Settings of a pool's sidecar."""

import pytest
from rlrun_adapter_sidecar.pools.settings import settings_from


def test_the_token_of_the_pool_is_required_and_not_shown() -> None:
    settings = settings_from({"RLRUN_TOKEN": "secret"})
    assert str(settings.order_path) == "/etc/rlrun/pool/pool-order.json"
    assert "secret" not in repr(settings)
    with pytest.raises(ValueError, match="RLRUN_TOKEN"):
        settings_from({"RLRUN_TOKEN": ""})


def test_a_pool_serves_adapters_only() -> None:
    assert settings_from({"RLRUN_TOKEN": "secret", "RLRUN_POLICY_KIND": "adapter"})
    with pytest.raises(ValueError, match="RLRUN_POLICY_KIND"):
        settings_from({"RLRUN_TOKEN": "secret", "RLRUN_POLICY_KIND": "weights"})
