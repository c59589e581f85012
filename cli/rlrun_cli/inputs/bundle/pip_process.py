"""Process of pip with the markers of the environment image: `python pip_process.py MARKERS ARGUMENT...`.

Options of pip select the tags of wheels and the version of Python, but pip evaluates markers such as `sys_platform` for
the machine on which it runs.
"""

import importlib
import json
import runpy
import sys
from typing import Any


def main() -> None:
    """Run pip with the remaining arguments. `MARKERS`: values of markers as a JSON object."""
    markers: Any = importlib.import_module("pip._vendor.packaging.markers")
    own, image = markers.default_environment, json.loads(sys.argv[1])
    markers.default_environment = lambda: {**own(), **image}
    sys.argv = ["pip", *sys.argv[2:]]
    runpy.run_module("pip", run_name="__main__")


if __name__ == "__main__":
    main()
