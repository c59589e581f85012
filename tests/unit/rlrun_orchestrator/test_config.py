"""Settings of the orchestrator process."""

import pytest
from rlrun_orchestrator.config import OrchestratorSettings


def test_invalid_variable_is_named_in_the_error() -> None:
    settings = OrchestratorSettings.from_environment({"RLRUN_GATEWAY_PORT": "9000", "RLRUN_STEP_DEADLINE": "1.5"})
    assert (settings.gateway_port, settings.step_deadline) == (9000, 1.5)
    with pytest.raises(ValueError, match="RLRUN_GATEWAY_PORT"):
        OrchestratorSettings.from_environment({"RLRUN_GATEWAY_PORT": "many"})
