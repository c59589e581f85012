"""`python -m rlrun_orchestrator.fetch SOURCE DEST`: exit 0 when the model is there, 64 when it never will be, or 1.

The reason of a failure is JSON in /dev/termination-log (`RLRUN_TERMINATION_LOG` names another file), where the
operator reads it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rlrun.artifacts.store import Store

from rlrun_orchestrator.errors import EXIT_CONFIGURATION, EXIT_RESTART
from rlrun_orchestrator.fetch.fetcher import fetch
from rlrun_orchestrator.fetch.sources import FetchError
from rlrun_orchestrator.termination import TERMINATION_LOG, write_termination_message


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="rlrun_orchestrator.fetch", description="Bring a base model into a folder.")
    parser.add_argument("source", help="s3://bucket/path, hf://owner/name[@revision] or pvc://claim/path")
    parser.add_argument("dest", type=Path, help="folder to bring it to; its parent must be writable")
    given = parser.parse_args(arguments)
    try:
        fetch(given.source, given.dest, Store, lambda line: print(line, flush=True))
    except FetchError as error:
        print(f"{error.problem.reason}: {error.problem.message}", file=sys.stderr, flush=True)
        log = Path(os.environ.get("RLRUN_TERMINATION_LOG", TERMINATION_LOG))
        write_termination_message(error.problem, log)
        return EXIT_CONFIGURATION if error.permanent else EXIT_RESTART
    return 0


if __name__ == "__main__":
    sys.exit(main())
