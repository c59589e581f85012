"""Decisions: pure functions of what was observed, the settings, and the time. No I/O below this package."""
