"""`python -m rlrun_adapter_sidecar.policies`: serves policies until SIGTERM."""

import logging
import sys

import aiohttp
from rlrun.constants import ExitCode
from rlrun.protocol.access import bearer
from rlrun.protocol.policy import PolicyKind
from rlrun.service.errors import FatalError
from rlrun.service.run_service import run_service
from rlrun.service.server import serving, stop_event
from rlrun.storage.store import Store, StoreError

from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.engine.trainer_fallback import TrainerFallback
from rlrun_adapter_sidecar.engine.vllm_client import Engine
from rlrun_adapter_sidecar.policies.adapters import AdapterLoader
from rlrun_adapter_sidecar.policies.policy_loader import PolicyLoader
from rlrun_adapter_sidecar.policies.server import sidecar_app
from rlrun_adapter_sidecar.policies.settings import SidecarSettings, settings_from
from rlrun_adapter_sidecar.policies.weights import FullWeightsLoader

log = logging.getLogger("rlrun_adapter_sidecar")


async def serve(settings: SidecarSettings) -> int:
    """Serve until SIGTERM and return the exit code. Raises FatalError."""
    stop = stop_event()
    try:
        store = Store.of_process()
    except StoreError as error:
        raise FatalError(error.problem, ExitCode.CONFIGURATION) from error
    async with aiohttp.ClientSession(headers=bearer(settings.token)) as http:
        engine = Engine(http, settings.engine_url, settings.load_deadline)
        folder, fallback = settings.adapters_dir, TrainerFallback(http, store)
        files = PolicyFiles(store, folder, settings.download_deadline, SidecarMetrics(), fallback)
        adapters: PolicyLoader = FullWeightsLoader(engine, files)
        if settings.policy_kind is PolicyKind.adapter:
            adapters = AdapterLoader(engine, files, settings.unload_grace)
        async with serving(sidecar_app(adapters, folder, settings.token), settings.sidecar_port):
            log.info(
                "sidecar on port %d for engine %s with policies of kind %s",
                settings.sidecar_port,
                settings.engine_url,
                settings.policy_kind,
            )
            await stop.wait()
        await adapters.close()
    return ExitCode.STOPPED


if __name__ == "__main__":
    sys.exit(run_service("rlrun_adapter_sidecar", settings_from, serve))
