"""`python -m rlrun_orchestrator.fetch SOURCE DEST`: fetch a base model into a folder.

Exit codes: 0 the model is there, 64 another attempt would fail alike, 1 another attempt may succeed. The problem is
JSON in /dev/termination-log (`RLRUN_TERMINATION_LOG` names another file), where the operator reads it.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from rlrun.artifacts.store import Store
from rlrun.service.exit import EXIT_COMPLETED
from rlrun.service.run_service import exit_code_of

from rlrun_orchestrator.fetch.fetcher import fetch


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the model and return the exit code of the process."""
    parser = argparse.ArgumentParser(prog="rlrun_orchestrator.fetch", description="Bring a base model into a folder.")
    parser.add_argument("source", help="s3://bucket/path, hf://owner/name[@revision] or pvc://claim/path")
    parser.add_argument("dest", type=Path, help="folder to bring it to; its parent must be writable")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s")

    def work() -> int:
        fetch(given.source, given.dest, Store, lambda line: print(line, flush=True))
        return EXIT_COMPLETED

    return exit_code_of(work, "rlrun_orchestrator.fetch")


if __name__ == "__main__":
    sys.exit(main())
