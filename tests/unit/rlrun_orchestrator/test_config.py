"""Settings of the orchestrator process."""

import pytest
from rlrun.api.base.address_rules import INTERNET_ONLY
from rlrun_orchestrator.config import OrchestratorSettings


def test_invalid_variable_is_named_in_the_error() -> None:
    settings = OrchestratorSettings.from_environment({"RLRUN_GATEWAY_PORT": "9000", "RLRUN_STEP_DEADLINE": "1.5"})
    assert (settings.gateway_port, settings.step_deadline) == (9000, 1.5)
    with pytest.raises(ValueError, match="RLRUN_GATEWAY_PORT"):
        OrchestratorSettings.from_environment({"RLRUN_GATEWAY_PORT": "many"})


def test_private_addresses_are_read_from_a_list() -> None:
    found = OrchestratorSettings.from_environment({"RLRUN_PRIVATE_ADDRESSES": "teacher.models.svc,10.0.0.0/8"})
    assert found.private_addresses.url_refusal("http://teacher.models.svc/v1") is None
    assert found.private_addresses.url_refusal("http://10.1.2.3/v1") is None
    assert OrchestratorSettings.from_environment({"RLRUN_PRIVATE_ADDRESSES": ""}).private_addresses == INTERNET_ONLY
    with pytest.raises(ValueError, match=r"RLRUN_PRIVATE_ADDRESSES.*'10\.0\.0\.0/33'"):
        OrchestratorSettings.from_environment({"RLRUN_PRIVATE_ADDRESSES": "10.0.0.0/33"})
