"""Environment server: the only place where users' code runs."""
