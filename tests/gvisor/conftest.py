"""The cluster of the end-to-end level, whose node has gVisor here (`make gvisor`)."""

from tests.e2e.conftest import module_namespace, platform  # noqa: F401
