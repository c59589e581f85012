"""Checks a container's GPUs before anything is downloaded or loaded.

`python gpu_check.py trainer` compares the number of GPUs visible to the CUDA driver with RLRUN_GPUS, the number that
the pod requests for its role. This module uses only the standard library, because it also runs in vLLM's image.
"""

import ctypes
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GPUS_VARIABLE = "RLRUN_GPUS"
"""Variable with the number of GPUs that the container requests."""
DEVICE_VARIABLE = "RLRUN_DEVICE"
"""Variable that an RLModel can set in the `env` of a role. With the value `cpu`, processes may run without the
requested GPUs.
"""
NODE_VARIABLE = "RLRUN_NODE"
COMPATIBILITY_VARIABLE = "VLLM_ENABLE_CUDA_COMPATIBILITY"
"""Variable that makes vLLM use the CUDA driver library of its image, which works with older drivers of some GPUs."""
TERMINATION_LOG_VARIABLE = "RLRUN_TERMINATION_LOG"
DEVICE_MISSING = "DeviceMissing"
CONFIGURATION = 64
"""Exit code of a failure that a restart of the container does not fix."""

NO_CUDA = "the image has a torch without CUDA"
OLD_DRIVER = "the driver is too old for the image's CUDA"
MINIMUM_DRIVERS = {11: "450", 12: "525", 13: "580"}
"""Minimum NVIDIA driver for each major version of CUDA (docs.nvidia.com/deploy/cuda-compatibility)."""
DRIVER_VERSION = Path("/proc/driver/nvidia/version")
LIBRARY = "libcuda.so.1"
MOUNTS = Path("/proc/self/mountinfo")
PLACES = (
    "/usr/local/nvidia/lib64",  # GKE, also with Container-Optimized OS
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",  # WSL
    "/run/nvidia/driver/usr/lib64",  # driver container of NVIDIA's GPU operator: OpenShift, RHEL
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",  # likewise: Ubuntu
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",  # CDI keeps the node's paths: RHEL, SUSE, Amazon Linux
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/glibc/usr/lib",  # Talos
    "/opt/nvidia/lib64",  # Flatcar
    "/var/lib/nvidia/lib64",  # Container-Optimized OS without GKE
    "/home/kubernetes/bin/nvidia/lib64",
    "/run/opengl-driver/lib",  # NixOS
)
"""Folders of the driver's libraries, in addition to those in the container's mounts."""
ERROR_REMEDIES = {
    100: "Check that the GPUs are healthy (`nvidia-smi` on the node), and that no variable of the RLModel hides them "
    "(CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES)",
    802: "Start NVIDIA's fabric manager on the node: its GPUs are connected by NVSwitch and need it",
    803: "Restart the node: its driver was replaced while another version was loaded",
}
OTHER_REMEDY = "Find the cause on the node with `nvidia-smi` and `dmesg | grep -i xid`"


@dataclass(frozen=True)
class GpuFacts:
    """Facts about the GPUs of a container."""

    image_cuda: str | None = None
    """CUDA version of the image's torch, such as 13.0. Empty for torch without CUDA, None if unknown."""
    driver: str | None = None
    """Version of the node's driver, or None if no driver is loaded or visible."""
    has_library: bool = False
    """True if the container has the driver's library."""
    driver_cuda: int = 0
    """Newest CUDA version supported by the driver's library: 12040 for 12.4, or 0 if unknown."""
    error: int = 0
    """Error code of the CUDA driver's initialization. 0 means success."""
    error_text: str = ""
    visible: int = 0
    """Number of GPUs visible to CUDA."""
    has_compatibility: bool = False
    """True if vLLM is set to use the newer CUDA driver library in its image."""
    place: str = ""
    """Folder of the driver's library if the loader does not search it. Empty if the loader finds the library."""
    loader_path: str = ""
    """LD_LIBRARY_PATH of the container."""


def problem(facts: GpuFacts, gpus: int, role: str, node: str = "") -> str | None:
    """Return why the container cannot use `gpus` GPUs, with a remedy, or None if it can."""
    where = f"node {node}" if node else "the node"
    unseen = "a driver with no version" if facts.has_library else "no NVIDIA driver"
    driver = f"driver {facts.driver}" if facts.driver else f"{unseen} in {DRIVER_VERSION}"
    without = f"To run without GPUs, set {role}.gpus of the RLModel to 0."
    begin = f"The RLModel requests {gpus} GPU{'s' * (gpus != 1)} for each {role} pod, but "
    if facts.image_cuda == "":
        return (
            f"{begin}{NO_CUDA}. Use an image with GPU support: build it with `make push`, without CPU=1, or "
            f"set {role}.image of the RLModel. {without}"
        )
    if facts.place:
        paths = ":".join(path for path in (facts.place, facts.loader_path) if path)
        return (
            f"{begin}the driver's library ({LIBRARY}) is in {facts.place}, which the image's loader does not search: "
            f"LD_LIBRARY_PATH is {facts.loader_path or 'not set'}. Set LD_LIBRARY_PATH in {role}.env of the RLModel to "
            f"{paths}; the node's driver need not be changed."
        )
    if not facts.has_library:
        install = "Install" if facts.driver else "Install the driver and"
        return (
            f"{begin}the container has no driver library ({LIBRARY}); {where} has {driver}. Searched: the loader's "
            f"path, mounts of the container, and folders such as {PLACES[0]}. {install} NVIDIA's container toolkit or "
            "the cloud's device plugin on the node, so that the library is mounted into containers. Then make its "
            f"runtime the default, or set {role}.runtimeClassName of the RLModel. {without}"
        )
    needed = int(facts.image_cuda.partition(".")[0]) if facts.image_cuda else 0
    if 0 < facts.driver_cuda // 1000 < needed and not facts.has_compatibility:
        least, most = MINIMUM_DRIVERS.get(needed), f"{facts.driver_cuda // 1000}.{facts.driver_cuda % 1000 // 10}"
        return (
            f"{begin}{OLD_DRIVER} {facts.image_cuda}: {where} has {driver}, which supports CUDA {most}. Install driver "
            f"{least or f'for CUDA {needed}'} or newer on the node, or use an image with an older CUDA "
            f"({role}.image of the RLModel)."
        )
    if facts.error:
        return (
            f"{begin}CUDA does not start: error {facts.error}{f' ({facts.error_text})' if facts.error_text else ''} on "
            f"{where} with {driver}. {ERROR_REMEDIES.get(facts.error, OTHER_REMEDY)}."
        )
    if facts.visible < gpus:
        return (
            f"{begin}CUDA sees only {facts.visible} on {where}. {ERROR_REMEDIES[100]}. A process can use only one MIG "
            "device."
        )
    return None


def needs_change(message: str) -> bool:
    """Return whether only a different image or driver can solve the problem.

    Other problems may disappear after some time or on another node. On a new node, for example, the driver or NVIDIA's
    fabric manager may start late.
    """
    return NO_CUDA in message or OLD_DRIVER in message


def gpu_failure_message(error: object, role: str, node: str = "") -> str:
    """Return the message to report if the first computation on a visible GPU failed with `error`."""
    first = str(error).strip().partition("\n")[0].rstrip(".")
    return (
        f"The first computation on the GPU of {f'node {node}' if node else 'the node'} failed: {first}. "
        f'"no kernel image" means that the image has no code for this kind of GPU: use another image ({role}.image of '
        f"the RLModel) or other nodes. {OTHER_REMEDY}."
    )


def inspect(environ: Mapping[str, str] = os.environ, load: Callable[[str], Any] = ctypes.CDLL) -> GpuFacts:
    """Collect facts about the image's torch, the driver and its GPUs. `load` loads a library."""
    image_cuda, driver = torch_cuda(), driver_version()
    compatible = environ.get(COMPATIBILITY_VARIABLE, "").strip().lower() in ("1", "true")
    loader_path = environ.get("LD_LIBRARY_PATH", "")
    cuda, place = _find_library(load)
    if cuda is None or place:
        return GpuFacts(
            image_cuda,
            driver,
            has_library=cuda is not None,
            place=place,
            loader_path=loader_path,
            has_compatibility=compatible,
        )
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    error = int(cuda.cuInit(0)) or int(cuda.cuDeviceGetCount(ctypes.byref(count)))
    return GpuFacts(
        image_cuda,
        driver,
        has_library=True,
        driver_cuda=version.value,
        error=error,
        error_text=_error_text(cuda, error) if error else "",
        visible=count.value,
        has_compatibility=compatible,
    )


def mounted_folders(mounts: str) -> list[str]:
    """Return the folders into which a container runtime has mounted driver libraries. `mounts` is the text of
    mountinfo.
    """
    points = [fields[4] for line in mounts.splitlines() if len(fields := line.split(" ")) > 4]
    files = [point.rpartition("/")[0] for point in points if "/libcuda.so" in point]
    roots = [point for point in points if point.rpartition("/")[2].lower() in ("nvidia", "lib64", "lib")]
    return list(dict.fromkeys([*files, *(f"{root}{part}" for root in roots for part in ("", "/lib64", "/lib"))]))


def _find_library(load: Callable[[str], Any]) -> tuple[Any, str]:
    """Return (driver's library, or None if it is missing; folder of the library). The folder is empty if the loader
    finds the library.
    """
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        mounts = ""
    for folder in ("", *mounted_folders(mounts), *PLACES):
        try:
            return load(f"{folder}/{LIBRARY}" if folder else LIBRARY), folder
        except OSError:
            continue
    return None, ""


def torch_cuda(torch: Path | None = None) -> str | None:
    """Return the CUDA version of torch, or an empty string for torch without CUDA. Does not import torch, which takes
    seconds.
    """
    if torch is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        torch = Path(spec.origin).parent
    try:
        text = (torch / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*(?:None|['\"]([0-9.]+)['\"])", text, re.MULTILINE)
    return None if found is None else found[1] or ""


def driver_version(path: Path = DRIVER_VERSION) -> str | None:
    """Return the version of the node's driver, or None if no driver is visible."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return found[0] if found else None


def required_gpus(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of GPUs that the container must have."""
    return 0 if environ.get(DEVICE_VARIABLE) == "cpu" else int(environ.get(GPUS_VARIABLE) or 0)


def main(arguments: list[str], environ: Mapping[str, str] = os.environ) -> int:
    """Check the GPUs for the role in the arguments. Returns the exit code: 0, or CONFIGURATION if there is a problem,
    which is written to the termination message.
    """
    gpus, node = required_gpus(environ), environ.get(NODE_VARIABLE, "")
    if not gpus:
        print("No GPU is required")
        return 0
    facts = inspect(environ)
    message = problem(facts, gpus, arguments[0], node)
    if message is None:
        print(f"{facts.visible} visible GPU(s), driver {facts.driver}, CUDA {facts.image_cuda} in the image")
        return 0
    print(message, file=sys.stderr)
    log = Path(environ.get(TERMINATION_LOG_VARIABLE) or "/dev/termination-log")
    log.write_text(json.dumps({"reason": DEVICE_MISSING, "message": message}), encoding="utf-8")
    return CONFIGURATION


def _error_text(cuda: Any, error: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(error, ctypes.byref(text))
    return (text.value or b"").decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
