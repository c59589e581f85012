"""Entry point of the operator: `python -m rlrun_operator`."""
# ruff: noqa: E402

import asyncio
import gc
import logging
import sys

from rlrun.constants import ExitCode
from rlrun.kube.connection.official_client import import_lazily
from rlrun.service.authority_files import follow_authorities

# Must come before any import of the Kubernetes client, including the one in kopf.
import_lazily()

from rlrun_operator.config.settings import OperatorSettings, SettingsError, load_settings
from rlrun_operator.operator_process import Operator
from rlrun_operator.runtime.leader_election import LeaseLost
from rlrun_operator.runtime.platform_key import KeyInvalid
from rlrun_operator.runtime.server_certificate import CertificateMissing
from rlrun_operator.runtime.trusted_authorities import with_ca_bundle

GC_THRESHOLDS = (50_000, 20, 20)
"""Arguments of `gc.set_threshold`: the number of new objects that triggers a collection of the youngest generation,
then for each older generation the number of collections of the younger one that triggers its collection.
"""


def main() -> int:
    """Run the operator. Returns exit code 0 after a stop, 1 if the Lease is lost or a key or certificate is missing or
    invalid, and 64 if the settings are invalid or cannot be read. Other errors are raised.
    """
    follow_authorities()
    try:
        settings = with_ca_bundle(load_settings())
    except SettingsError as error:
        print(error, file=sys.stderr)
        return ExitCode.CONFIGURATION
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    # At INFO kopf logs every event.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(settings.log_level)))
    # kopf warns at each start that it does not handle signals; the process does.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    # Objects created by imports are never freed, and would cost each full garbage collection 0.1 s. A page of a list
    # creates 100,000 objects: with the default thresholds, half of its decoding time would be spent on collections that
    # free nothing.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        asyncio.run(_run(settings))
    except LeaseLost as error:
        logging.getLogger(__name__).error("%s. Exiting, so that two operators never act at the same time.", error)
        return 1
    except (KeyInvalid, CertificateMissing) as error:
        logging.getLogger(__name__).error(
            "%s. The operator exits; Kubernetes restarts it until the problem is solved.", str(error).rstrip(".")
        )
        return 1
    return 0


async def _run(settings: OperatorSettings) -> None:
    await Operator(settings).run()


if __name__ == "__main__":
    sys.exit(main())
