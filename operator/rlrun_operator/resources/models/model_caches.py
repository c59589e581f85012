"""Caches of trainers and engines for compiled kernels and graphs, in one volume of the pod.

By default each library uses its own folder in the home folder, or next to its code, where the pods cannot write. If the
volume is a claim, the caches are kept, and a replacement engine need not compile again, which takes minutes.
"""

from rlrun.api.model import Pods
from rlrun.kube.objects import Obj

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.base.pod_templates import disk_volume
from rlrun_operator.resources.models.model_volumes import model_storage

VOLUME = "cache"
CACHE_DIR = "/cache"
FOLDERS = {
    "XDG_CACHE_HOME": "",
    "HF_HOME": "huggingface",
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
    "NUMBA_CACHE_DIR": "numba",
}
"""Folder in the volume, by the variable with which a library is configured."""


def cache_env() -> dict[str, str]:
    """Return the variables with which libraries find their cache folders."""
    return {name: f"{CACHE_DIR}/{folder}".rstrip("/") for name, folder in FOLDERS.items()}


def cache_volume(settings: OperatorSettings, shape: Pods) -> dict[str, Obj]:
    """Return the cache volume: the claim in the RLModel, or a volume on the node's disk that is deleted with the
    pod.
    """
    if shape.cache_claim is not None:
        return {VOLUME: {"persistentVolumeClaim": {"claimName": shape.cache_claim}}}
    return {VOLUME: disk_volume(model_storage(settings, shape))}
