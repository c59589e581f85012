"""Benchmarks of the project against tools that users might choose instead.

Each part is a program (see `python -m bench.trl --help`) and writes its results through `bench.report` to build/bench.
`make bench` runs all of them. `make bench-table` writes the results into docs/benchmarks.md and docs/bench/README.md.
"""
