"""Serving controller: pools of engines, which serve deployed adapters or sample for several runs."""
