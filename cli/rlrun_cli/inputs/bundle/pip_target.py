"""The environment image as pip's options name it."""

from rlrun.storage.environment_image import MARKERS, PYTHON

PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
)
"""Platforms whose wheels the image can load, the most specific first."""
ABI = f"cp{PYTHON.replace('.', '')}"
TARGET = f"Linux x86_64, Python {PYTHON}"
TARGET_OPTIONS = (
    "--implementation=cp",
    f"--abi={ABI}",
    f"--python-version={MARKERS['python_full_version']}",
    *(f"--platform={platform}" for platform in PLATFORMS),
)
SKIP = "--no-deps pushes without these wheels"
