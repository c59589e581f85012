"""The second reconciler: pools of engines that serve deployed adapters."""
