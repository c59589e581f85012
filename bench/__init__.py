"""What this project is worth beside what a user would take instead: measured, not claimed.

Each part is a program of its own (`python -m bench.trl --help` says what it takes), and all of them write through
`bench.report` to build/bench. `make bench` runs them all; `make bench-table` puts the results into docs/benchmarks.md.
"""
