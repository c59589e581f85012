"""Lazy import of the official client, without the 800 classes of its API.

Importing these classes takes most of the time of a short command and 45 MB of memory. Importing the classes of
`kubernetes.aio` costs the same again.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import Any

USED = {"ApiClient": "api_client", "ApiException": "exceptions", "Configuration": "configuration"}
PACKAGES: dict[str, dict[str, str]] = {
    "kubernetes": {},
    # kopf imports the two models.
    "kubernetes.client": {
        **USED,
        "V1ObjectMeta": "models.v1_object_meta",
        "V1OwnerReference": "models.v1_owner_reference",
    },
    "kubernetes.client.models": {},
    "kubernetes.aio": {},
    "kubernetes.aio.client": USED,
    "kubernetes.aio.client.models": {},
}
"""Packages whose `__init__` imports everything, with the module of each name that the project uses."""


def import_lazily() -> None:
    """Make `import kubernetes` load modules when they are used. Has no effect if `kubernetes` is already imported.

    The whole client can be used afterwards: a name that is not in PACKAGES loads the complete package.
    """
    if "kubernetes" in sys.modules:
        return
    for name, places in PACKAGES.items():
        spec = importlib.util.find_spec(name)
        if spec is not None:
            _install(spec, places)


def _install(spec: ModuleSpec, places: dict[str, str]) -> None:
    """Add the package to `sys.modules` without running its `__init__`."""
    module: Any = importlib.util.module_from_spec(spec)

    def load(name: str) -> Any:
        """Load a missing attribute of the package (PEP 562)."""
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {spec.name!r} has no attribute {name!r}")
        if name in places:
            return getattr(importlib.import_module(f"{spec.name}.{places[name]}"), name)
        if importlib.util.find_spec(f"{spec.name}.{name}") is not None:
            return importlib.import_module(f"{spec.name}.{name}")
        if "__getattr__" not in vars(module) or spec.loader is None:
            raise AttributeError(f"module {spec.name!r} has no attribute {name!r}")
        del module.__getattr__
        spec.loader.exec_module(module)
        return getattr(module, name)

    module.__getattr__ = load
    sys.modules[spec.name] = module
    parent, _, child = spec.name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
