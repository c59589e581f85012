"""Sidecar of shared pools: one engine serves the policies of several runs, each of which manages its own."""
