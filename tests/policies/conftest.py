"""The cluster of the end-to-end level, which enforces NetworkPolicies here (`make policies`)."""

from tests.e2e.conftest import module_namespace, platform  # noqa: F401
