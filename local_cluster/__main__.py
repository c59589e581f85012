"""Entry point of `python -m local_cluster`."""

import sys

from local_cluster.cli import app
from local_cluster.host.errors import LocalClusterError

try:
    app()
except LocalClusterError as error:
    print(f"\n{error}", file=sys.stderr)
    sys.exit(1)
