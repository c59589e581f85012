"""Serving controller: pools of engines that serve deployed adapters."""
