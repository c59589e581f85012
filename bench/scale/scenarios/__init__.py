"""Scenarios of the benchmark of many runs: what each does on its cluster."""
