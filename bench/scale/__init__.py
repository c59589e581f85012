"""Benchmark of many runs: see `python -m bench.scale --help`."""
