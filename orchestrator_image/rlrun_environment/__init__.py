"""Environment server: the only process tree of a run that executes user code."""
