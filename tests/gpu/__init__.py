"""A run on one machine with a GPU and no cluster."""
