"""Testbed of the benchmark of many runs: control plane, operator, orchestrators, objects and counters."""
