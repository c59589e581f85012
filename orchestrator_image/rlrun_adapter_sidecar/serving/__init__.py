"""Serving sidecar: keeps the deployed adapters of a base model loaded in the engine of its pod."""
