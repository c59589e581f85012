"""Entry point of `python -m bench.scale`."""

import sys

from bench.scale.command_line import main

if __name__ == "__main__":
    sys.exit(main())
