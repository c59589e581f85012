"""Sidecar of shared pools. One engine serves the policies of several runs, and each run manages its own policies."""
