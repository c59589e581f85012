"""Figures of the benchmark of many runs: rows from repetitions, delays, growth, comparison. Pure."""
