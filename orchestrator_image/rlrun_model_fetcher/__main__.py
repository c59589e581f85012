"""`python -m rlrun_model_fetcher SOURCE DEST`: downloads a base model into a folder.

Exit codes: 0 success, 64 another attempt would fail too, 1 another attempt may succeed. The problem is written as JSON
to /dev/termination-log (or the file in `RLRUN_TERMINATION_LOG`), where the operator reads it.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from rlrun.constants import ExitCode
from rlrun.service.run_service import exit_code_of
from rlrun.storage.store import Store

from rlrun_model_fetcher.fetcher import fetch


def main(arguments: Sequence[str] | None = None) -> int:
    """Download the model and return the exit code of the process."""
    parser = argparse.ArgumentParser(prog="rlrun_model_fetcher", description="Download a base model into a folder.")
    sources = "s3://bucket/path, hf://owner/name@COMMIT, pvc://claim/path or oci://repository@DIGEST/path"
    parser.add_argument("source", help=sources)
    parser.add_argument("dest", type=Path, help="target folder; its parent must be writable")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s")

    def work() -> int:
        fetch(given.source, given.dest, Store.of_process, lambda line: print(line, flush=True))
        return ExitCode.COMPLETED

    return exit_code_of(work, "rlrun_model_fetcher")


if __name__ == "__main__":
    sys.exit(main())
