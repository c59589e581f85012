"""Figures of repetitions that tests change in one place."""

from bench.scale.testbed.readings import OperatorUsage

IDLE = OperatorUsage(seconds=50, requests=50, writes=0, listings=0, looks=10, cpu_seconds=1)
BUSY = OperatorUsage(seconds=40, requests=4000, writes=1900, listings=10, looks=200, cpu_seconds=10)
