"""Serving sidecar: keeps the deployed adapters of a base model in the engine beside it."""
